package rig

import (
	"fmt"
	"strconv"
	"strings"
)

// trialMark is what names a trial in a request.
var trialMark = []byte(`"user":"trial-`)

// Request is a chat completion as it goes over the wire: bodyBytes long, shown to key if there is one. A trial of 0 or
// more is named in it, for Engine.Asked and Engine.Gone.
func Request(model, key string, bodyBytes int, stream bool, trial int) []byte {
	body := fmt.Sprintf(`{"model":%q,"stream":%t,"max_tokens":256,"temperature":0.7,`, model, stream)
	if trial >= 0 {
		body += fmt.Sprintf(`"user":"trial-%d",`, trial)
	}
	body += `"messages":[{"role":"system","content":"You answer briefly."},{"role":"user","content":"`
	const end = `"}]}`
	body += prose(bodyBytes-len(body)-len(end)) + end
	var b strings.Builder
	b.WriteString("POST /v1/chat/completions HTTP/1.1\r\nHost: bench.internal\r\nUser-Agent: bench/1\r\nAccept: */*\r\n")
	if key != "" {
		b.WriteString("Authorization: Bearer " + key + "\r\n")
	}
	b.WriteString("Content-Type: application/json\r\nContent-Length: " + strconv.Itoa(len(body)) + "\r\n\r\n" + body)
	return []byte(b.String())
}

// PlainAnswer is an engine's whole answer, bodyBytes of body.
func PlainAnswer(bodyBytes int) []byte {
	body := `{"id":"chatcmpl-7f3a9c52d1e84b06","object":"chat.completion","created":1760000000,"model":"bench","choices":[{"index":0,"message":{"role":"assistant","content":"`
	const end = `"},"logprobs":null,"finish_reason":"stop"}],"usage":{"prompt_tokens":200,"completion_tokens":100,"total_tokens":300}}`
	body += prose(bodyBytes-len(body)-len(end)) + end
	return []byte("HTTP/1.1 200 OK\r\nServer: engine\r\nContent-Type: application/json\r\nContent-Length: " + strconv.Itoa(len(body)) + "\r\n\r\n" + body)
}

// prose is n bytes of text.
func prose(n int) string {
	const words = "the river ran slowly past the mill and nobody counted the hours that it took "
	if n <= 0 {
		return ""
	}
	return strings.Repeat(words, n/len(words)+1)[:n]
}
