package openaigo

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/shared"
)

// key is the secret of a name.
func key(t *testing.T, name string) string {
	t.Helper()
	var keys map[string]string
	if err := json.Unmarshal([]byte(os.Getenv("SLUICE_KEYS")), &keys); err != nil {
		t.Skip("no gateway: run the tests of bench/clients with SLUICE_CLIENTS_GO=1")
	}
	return keys[name]
}

func client(t *testing.T, options ...option.RequestOption) openai.Client {
	t.Helper()
	own := []option.RequestOption{option.WithBaseURL(os.Getenv("SLUICE_URL") + "/v1"), option.WithAPIKey(key(t, "main")), option.WithMaxRetries(0)}
	return openai.NewClient(append(own, options...)...)
}

func ask(content string) openai.ChatCompletionNewParams {
	return openai.ChatCompletionNewParams{Model: "chat", MaxTokens: openai.Int(8),
		Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage(content)}}
}

func TestChat(t *testing.T) {
	c := client(t)
	whole, err := c.Chat.Completions.New(t.Context(), ask("hello"))
	if err != nil {
		t.Fatal(err)
	}
	if n := len(strings.Fields(whole.Choices[0].Message.Content)); n != 8 || whole.Usage.CompletionTokens != 8 {
		t.Errorf("%d words, %d tokens", n, whole.Usage.CompletionTokens)
	}
	q := ask("hello")
	q.StreamOptions.IncludeUsage = openai.Bool(true)
	stream := c.Chat.Completions.NewStreaming(t.Context(), q)
	defer stream.Close()
	acc := openai.ChatCompletionAccumulator{}
	for stream.Next() {
		if !acc.AddChunk(stream.Current()) {
			t.Fatal("the chunks do not fit")
		}
	}
	if err := stream.Err(); err != nil {
		t.Fatal(err)
	}
	if acc.Choices[0].Message.Content != whole.Choices[0].Message.Content || acc.Usage.CompletionTokens != 8 {
		t.Errorf("streamed %q, %d tokens", acc.Choices[0].Message.Content, acc.Usage.CompletionTokens)
	}
}

func TestTools(t *testing.T) {
	c := client(t)
	q := ask("call:get_weather call:get_time")
	q.MaxTokens = openai.Int(200)
	for _, name := range []string{"get_weather", "get_time"} {
		q.Tools = append(q.Tools, openai.ChatCompletionFunctionTool(shared.FunctionDefinitionParam{Name: name,
			Parameters: shared.FunctionParameters{"type": "object", "properties": map[string]any{"city": map[string]any{"type": "string"}}}}))
	}
	whole, err := c.Chat.Completions.New(t.Context(), q)
	if err != nil {
		t.Fatal(err)
	}
	stream := c.Chat.Completions.NewStreaming(t.Context(), q)
	defer stream.Close()
	acc := openai.ChatCompletionAccumulator{}
	for stream.Next() {
		acc.AddChunk(stream.Current())
	}
	if err := stream.Err(); err != nil {
		t.Fatal(err)
	}
	want, got := whole.Choices[0].Message.ToolCalls, acc.Choices[0].Message.ToolCalls
	if len(want) != 2 || len(got) != 2 {
		t.Fatalf("%d calls, %d streamed", len(want), len(got))
	}
	for i := range want {
		if got[i].Function.Name != want[i].Function.Name || got[i].Function.Arguments != want[i].Function.Arguments || !json.Valid([]byte(want[i].Function.Arguments)) {
			t.Errorf("%+v, streamed %+v", want[i].Function, got[i].Function)
		}
	}
}

func TestErrors(t *testing.T) {
	for _, c := range []struct {
		name, key, model, content string
		status                    int
		code                      string
	}{
		{"wrong key", "", "chat", "x", 401, "invalid_api_key"},
		{"foreign model", "chatOnly", "native", "x", 403, "model_not_allowed"},
		{"unknown model", "main", "nobody", "x", 404, "model_not_found"},
		{"busy", "main", "chat", "fault:refuse-429", 429, ""},
		{"overloaded", "main", "chat", "fault:refuse-503", 503, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			secret := key(t, c.key)
			if secret == "" {
				secret = "sk-wrong"
			}
			q := ask(c.content)
			q.Model = c.model
			cl := client(t, option.WithAPIKey(secret))
			_, err := cl.Chat.Completions.New(t.Context(), q)
			var told *openai.Error
			if !errors.As(err, &told) || told.StatusCode != c.status || (c.code != "" && told.Code != c.code) {
				t.Errorf("%v", err)
			}
		})
	}
	for _, kind := range []string{"die", "error-object"} {
		cl := client(t)
		stream := cl.Chat.Completions.NewStreaming(t.Context(), ask("fault:"+kind))
		n := 0
		for stream.Next() {
			n++
		}
		if stream.Err() == nil || n != 3 {
			t.Errorf("%s: %v after %d chunks", kind, stream.Err(), n)
		}
		stream.Close()
	}
}

func TestRetryWaitsAsLongAsItWasTold(t *testing.T) {
	var tries []time.Time
	cl := client(t, option.WithMaxRetries(2), option.WithMiddleware(func(r *http.Request, next option.MiddlewareNext) (*http.Response, error) {
		tries = append(tries, time.Now())
		return next(r)
	}))
	if _, err := cl.Chat.Completions.New(t.Context(), ask("fault:refuse-429/"+rand(t))); err != nil {
		t.Fatal(err)
	}
	if len(tries) != 2 || tries[1].Sub(tries[0]) < time.Second {
		t.Errorf("%d tries: %v", len(tries), tries)
	}
}

// rand is a name of this run.
func rand(t *testing.T) string { return strings.ReplaceAll(t.TempDir()[1:], "/", "-") }

func TestTheEngineSeesAClientLeave(t *testing.T) {
	before := aborted(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	q := ask("a long story")
	q.MaxTokens = openai.Int(8000)
	cl := client(t)
	stream := cl.Chat.Completions.NewStreaming(ctx, q)
	for range 3 {
		if !stream.Next() {
			t.Fatal(stream.Err())
		}
	}
	cancel()
	stream.Close()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for limit := time.After(20 * time.Second); aborted(t) == before; {
		select {
		case <-tick.C:
		case <-limit:
			t.Fatal("the engine never saw it")
		}
	}
}

// aborted is the engine's line about abandoned requests.
func aborted(t *testing.T) string {
	t.Helper()
	resp, err := http.Get(os.Getenv("SLUICE_ENGINE_URL") + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	_, line, _ := strings.Cut(string(raw), `finished_reason="abort"} `)
	line, _, _ = strings.Cut(line, "\n")
	return line
}

func TestEmbeddingsAndModels(t *testing.T) {
	c := client(t)
	got, err := c.Embeddings.New(t.Context(), openai.EmbeddingNewParams{Model: "chat", Dimensions: openai.Int(1024),
		Input: openai.EmbeddingNewParamsInputUnion{OfArrayOfStrings: []string{"one", "two", "three"}}})
	if err != nil {
		t.Fatal(err)
	}
	for i, d := range got.Data {
		if d.Index != int64(i) || len(d.Embedding) != 1024 {
			t.Errorf("item %d: index %d, %d numbers", i, d.Index, len(d.Embedding))
		}
	}
	var names []string
	for list := c.Models.ListAutoPaging(t.Context()); list.Next(); {
		names = append(names, list.Current().ID)
	}
	slices.Sort(names)
	if !slices.Equal(names, []string{"chat", "native"}) {
		t.Errorf("models: %v", names)
	}
}
