package engine

import (
	"encoding/json"
	"net/http"
)

// tokenize serves /tokenize. A token is four bytes of text, told as a number
// from which detokenize makes them again.
func (e *engine) tokenize(w http.ResponseWriter, r *http.Request) {
	var q struct {
		Model    string    `json:"model"`
		Prompt   *string   `json:"prompt"`
		Messages []message `json:"messages"`
	}
	if !e.decode(w, r, &q, &q.Model) {
		return
	}
	var text []byte
	switch {
	case q.Prompt != nil:
		text = []byte(*q.Prompt)
	case len(q.Messages) > 0:
		for _, m := range q.Messages {
			text = append(text, messageText(m.Content)...)
		}
	default:
		e.writeError(w, badParam("prompt", "prompt or messages must be given"))
		return
	}
	tokens := make([]uint64, 0, tokensOf(len(text)))
	for len(text) > 0 {
		n := min(bytesPerPiece, len(text))
		token := uint64(n)
		for _, b := range text[:n] {
			token = token<<8 | uint64(b)
		}
		tokens = append(tokens, token)
		text = text[n:]
	}
	writeJSON(w, 200, fields{"count": len(tokens), "max_model_len": e.cfg.MaxModelTokens, "tokens": tokens, "token_strs": nil})
}

// messageText is a message's text: a string, or its parts' texts together.
func messageText(raw json.RawMessage) string {
	var s string
	if json.Unmarshal(raw, &s) == nil {
		return s
	}
	var parts []struct {
		Text string `json:"text"`
	}
	_ = json.Unmarshal(raw, &parts)
	for _, p := range parts {
		s += p.Text
	}
	return s
}

// detokenize serves /detokenize.
func (e *engine) detokenize(w http.ResponseWriter, r *http.Request) {
	var q struct {
		Model  string   `json:"model"`
		Tokens []uint64 `json:"tokens"`
	}
	if !e.decode(w, r, &q, &q.Model) {
		return
	}
	var text []byte
	for _, token := range q.Tokens {
		var bytes []byte
		for ; token > 0xff; token >>= 8 {
			bytes = append([]byte{byte(token)}, bytes...)
		}
		text = append(text, bytes...)
	}
	writeJSON(w, 200, fields{"prompt": string(text)})
}
