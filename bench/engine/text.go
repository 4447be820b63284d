package engine

// vocabulary is what the engine says: one word a token, safe inside a JSON
// string without escaping.
var vocabulary = [...]string{
	"water", "gate", "flow", "stone", "river", "low", "high", "lock", "keeper", "turns",
	"the", "a", "wheel", "and", "opens", "slow", "bright", "morning", "under", "bridge",
	"boats", "wait", "then", "rise", "with", "level", "north", "wind", "over", "field",
	"two", "three", "hands", "lift", "heavy", "iron", "door", "quiet", "again", "until",
	"evening", "mill", "grain", "moves", "along", "bank", "rope", "tied", "to", "old",
	"oak", "rain", "falls", "soft", "on", "wide", "grey", "canal", "every", "path",
	"leads", "home", "by", "noon",
}

// mix is splitmix64: a well-spread value for each x.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// appendWords appends tokens [from, to) of the text that seed names. The text
// is the same however it is cut.
func appendWords(dst []byte, seed uint64, from, to int) []byte {
	for i := from; i < to; i++ {
		if i > 0 {
			dst = append(dst, ' ')
		}
		dst = append(dst, vocabulary[mix(seed+uint64(i))%uint64(len(vocabulary))]...)
	}
	return dst
}

// naturalTokens is the output length of a prompt without a limit: 16 to 256.
func naturalTokens(seed uint64) int { return 16 + int(mix(seed^0x6c656e)%241) }

// tokensOf counts a text of n bytes: four bytes a token, rounded up.
func tokensOf(bytes int) int { return (bytes + 3) / 4 }
