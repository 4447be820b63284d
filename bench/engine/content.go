package engine

import (
	"strconv"
	"unicode/utf8"
)

// job is a checked generation: what the scheduler and the writers need.
type job struct {
	chat         bool
	stream       bool
	includeUsage bool
	promptTokens int
	choices      int    // answers to one prompt, decoded in turn as one sequence
	outTokens    int    // of each choice
	finish       string // finish_reason: "length" when the limit ended it
	seed         uint64

	pieces   []piece // what each choice says, one a token; nil: words of seed
	logprobs bool
	top      int // alternatives to each token that are told, with logprobs
	fault    fault
}

// totalTokens is the output of all choices.
func (j *job) totalTokens() int { return j.choices * j.outTokens }

// piece is one token of an answer that is not plain words: JSON text, or a part
// of a tool call.
type piece struct {
	call *toolCall // nil: text
	open bool      // the token that names the call; its text is empty
	text string
}

// toolCall is one call of an answer.
type toolCall struct {
	index     int
	id        string
	name      string
	arguments string
}

// bytesPerPiece is the length of a token of JSON: four bytes, as of a prompt.
const bytesPerPiece = 4

// cut appends text in pieces of bytesPerPiece bytes, more where a character
// would be torn.
func cut(dst []piece, call *toolCall, text string) []piece {
	for len(text) > 0 {
		n := min(bytesPerPiece, len(text))
		for n < len(text) && !utf8.RuneStart(text[n]) {
			n++
		}
		dst = append(dst, piece{call: call, text: text[:n]})
		text = text[n:]
	}
	return dst
}

// callPieces are the tokens of tool calls in turn: each its name, then its arguments.
func callPieces(calls []*toolCall) []piece {
	var out []piece
	for _, c := range calls {
		out = append(out, piece{call: c, open: true})
		out = cut(out, c, c.arguments)
	}
	return out
}

// calls are the tool calls among the tokens that are said; one that the limit
// cut short has the arguments said so far.
func (j *job) calls() []*toolCall {
	var out []*toolCall
	for _, p := range j.pieces[:min(j.outTokens, len(j.pieces))] {
		if p.open {
			c := *p.call
			c.arguments = ""
			out = append(out, &c)
		} else if p.call != nil {
			out[len(out)-1].arguments += p.text
		}
	}
	return out
}

// choiceSeed names the words of one choice; the first has the prompt's own.
func (j *job) choiceSeed(choice int) uint64 {
	if choice == 0 {
		return j.seed
	}
	return mix(j.seed + uint64(choice))
}

// appendText appends tokens [from, to) of a choice's text, ready for a JSON
// string. Tokens of tool calls have no text.
func (j *job) appendText(dst []byte, choice, from, to int) []byte {
	if j.pieces == nil {
		return appendWords(dst, j.choiceSeed(choice), from, to)
	}
	for _, p := range j.pieces[from:to] {
		if p.call == nil {
			dst = appendEscaped(dst, p.text)
		}
	}
	return dst
}

// text is the whole text of a choice.
func (j *job) text(choice int) string {
	if j.pieces == nil {
		return string(appendWords(nil, j.choiceSeed(choice), 0, j.outTokens))
	}
	var out []byte
	for _, p := range j.pieces[:j.outTokens] {
		if p.call == nil {
			out = append(out, p.text...)
		}
	}
	return string(out)
}

// tokenText is token i of a choice alone, without escapes.
func (j *job) tokenText(choice, i int) string {
	if j.pieces == nil {
		return string(appendWords(nil, j.choiceSeed(choice), i, i+1))
	}
	return j.pieces[i].text
}

// logprob is the log probability of alternative k (0: the token itself) to token i.
func (j *job) logprob(choice, i, k int) float64 {
	return -float64(mix(j.choiceSeed(choice)^uint64(i)<<8)%1000)/1000 - float64(k)
}

// alternative is the text of alternative k to token i.
func (j *job) alternative(choice, i, k int) string {
	if k == 0 {
		return j.tokenText(choice, i)
	}
	return vocabulary[(mix(j.seed+uint64(i))+uint64(k))%uint64(len(vocabulary))]
}

// appendLogprobs appends what chat says of tokens [from, to): null unless asked for.
func (j *job) appendLogprobs(dst []byte, choice, from, to int) []byte {
	if !j.logprobs {
		return append(dst, "null"...)
	}
	dst = append(dst, `{"content":[`...)
	for i := from; i < to; i++ {
		if i > from {
			dst = append(dst, ',')
		}
		dst = append(j.appendAlternative(dst, choice, i, 0), `,"top_logprobs":[`...)
		for k := range j.top {
			if k > 0 {
				dst = append(dst, ',')
			}
			dst = append(j.appendAlternative(dst, choice, i, k), '}')
		}
		dst = append(dst, "]}"...)
	}
	return append(dst, `],"refusal":null}`...)
}

// appendAlternative appends an alternative without its closing brace.
func (j *job) appendAlternative(dst []byte, choice, i, k int) []byte {
	text := j.alternative(choice, i, k)
	dst = appendQuoted(append(dst, `{"token":`...), text)
	dst = strconv.AppendFloat(append(dst, `,"logprob":`...), j.logprob(choice, i, k), 'g', -1, 64)
	dst = append(dst, `,"bytes":[`...)
	for b := range len(text) {
		if b > 0 {
			dst = append(dst, ',')
		}
		dst = strconv.AppendUint(dst, uint64(text[b]), 10)
	}
	return append(dst, ']')
}

// appendTextLogprobs appends what completions say of tokens [from, to).
func (j *job) appendTextLogprobs(dst []byte, choice, from, to int) []byte {
	if !j.logprobs {
		return append(dst, "null"...)
	}
	list := func(name string, each func(i int)) {
		dst = append(dst, name...)
		for i := from; i < to; i++ {
			if i > from {
				dst = append(dst, ',')
			}
			each(i)
		}
		dst = append(dst, ']')
	}
	list(`{"tokens":[`, func(i int) { dst = appendQuoted(dst, j.tokenText(choice, i)) })
	list(`,"token_logprobs":[`, func(i int) { dst = strconv.AppendFloat(dst, j.logprob(choice, i, 0), 'g', -1, 64) })
	offset := len(appendWords(nil, j.choiceSeed(choice), 0, from))
	list(`,"text_offset":[`, func(i int) {
		dst = strconv.AppendInt(dst, int64(offset), 10)
		offset += len(j.tokenText(choice, i))
	})
	list(`,"top_logprobs":[`, func(i int) {
		dst = append(dst, '{')
		for k := range j.top {
			if k > 0 {
				dst = append(dst, ',')
			}
			dst = append(appendQuoted(dst, j.alternative(choice, i, k)), ':')
			dst = strconv.AppendFloat(dst, j.logprob(choice, i, k), 'g', -1, 64)
		}
		dst = append(dst, '}')
	})
	return append(dst, '}')
}
