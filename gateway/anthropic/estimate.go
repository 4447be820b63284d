package anthropic

import (
	"bytes"
	"strconv"
	"unicode/utf8"

	"sluice/gateway/wire"
)

// What an estimate takes for granted.
const (
	// letterBytes is how many ASCII characters make a token, as they do in English; any other character is one.
	letterBytes = 4
	// imageTokens is what an image counts: the most that Anthropic documents for one that needs no scaling.
	imageTokens = 1600
)

// imagePart begins every image that AppendChat writes. Inside a string its quotes would be escaped.
var imagePart = []byte(`{"type":"image_url"`)

// EstimateTokens estimates the tokens of the prompt that a chat completions request of AppendChat or AppendCountChat
// makes, for engines that do not count themselves. All strings count, names of fields too: they stand for what a chat
// template puts around them. It may be off by a third for prose and by more for code or other scripts.
func EstimateTokens(chat []byte) int {
	letters, tokens := 0, imageTokens*bytes.Count(chat, imagePart)
	for len(chat) > 0 {
		open := bytes.IndexByte(chat, '"')
		if open < 0 {
			break
		}
		chat = chat[open+1:]
		if isData(chat) {
			chat = chat[bytes.IndexByte(chat, '"')+1:]
			continue
		}
		for len(chat) > 0 && chat[0] != '"' {
			if ch := chat[0]; ch == '\\' || ch < utf8.RuneSelf {
				_, n := unit(chat)
				chat = chat[min(n, len(chat)):]
				letters++
				continue
			}
			_, n := utf8.DecodeRune(chat)
			chat = chat[n:]
			tokens++
		}
		if len(chat) > 0 {
			chat = chat[1:]
		}
	}
	return tokens + (letters+letterBytes-1)/letterBytes
}

// isData reports that an image's data follows.
func isData(text []byte) bool {
	head := text[:min(len(text), 64)]
	return bytes.HasPrefix(head, []byte("data:")) && bytes.Contains(head, []byte(";base64,"))
}

// ReadCount reads what vLLM's /tokenize answers.
func ReadCount(answer []byte) (tokens int, ok bool) {
	m := wire.ReadMembers(answer)
	for m.Next() {
		if string(m.Name) == "count" {
			tokens, ok = wire.Count(m.Value)
		}
	}
	return tokens, ok && !m.Malformed()
}

// AppendCount appends the answer of count_tokens.
func AppendCount(dst []byte, tokens int) []byte {
	dst = append(dst, `{"input_tokens":`...)
	dst = strconv.AppendInt(dst, int64(tokens), 10)
	return append(dst, '}')
}
