package openaigo

import (
	"bytes"
	"testing"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/responses"
)

func TestResponses(t *testing.T) {
	c := client(t)
	q := responses.ResponseNewParams{Model: "chat", MaxOutputTokens: openai.Int(8), Input: responses.ResponseNewParamsInputUnion{OfString: openai.String("hello")}}
	whole, err := c.Responses.New(t.Context(), q)
	if err != nil {
		t.Fatal(err)
	}
	stream := c.Responses.NewStreaming(t.Context(), q)
	defer stream.Close()
	text, last := "", ""
	for stream.Next() {
		event := stream.Current()
		if last = event.Type; last == "response.output_text.delta" {
			text += event.Delta
		}
	}
	if err := stream.Err(); err != nil || last != "response.completed" {
		t.Fatalf("%v after %s", err, last)
	}
	if whole.OutputText() == "" || text != whole.OutputText() || whole.Usage.OutputTokens != 8 {
		t.Errorf("%q, streamed %q; %d tokens", whole.OutputText(), text, whole.Usage.OutputTokens)
	}
	kept, err := c.Responses.Get(t.Context(), whole.ID, responses.ResponseGetParams{})
	if err != nil || kept.OutputText() != text {
		t.Errorf("asked again: %v, %v", kept, err)
	}
}

func TestTranscription(t *testing.T) {
	c := client(t)
	got, err := c.Audio.Transcriptions.New(t.Context(), openai.AudioTranscriptionNewParams{Model: "chat",
		File: openai.File(bytes.NewReader(bytes.Repeat([]byte("s"), 100_000)), "speech.wav", "audio/wav")})
	if err != nil || got.Text == "" {
		t.Errorf("%v, %v", got, err)
	}
}
