package wire

import (
	"encoding/json"
	"strings"
	"testing"
)

var validSamples = []string{
	``, ` `, `{}`, `[]`, `"x"`, `1`, ` null `, `nul`, `{"a":[1,2.5e-3,-0,"\u00e9\ud83d\\\"",true,{}]}`, `{"a":1}x`, `01`, `1.`, `-`, `+1`, `"\x"`, `"\u12g4"`, `"\u12"`, `"a`,
	"\"a\nb\"", "\"0123456\tb\"", "\"\x7f\xff\"", "{\n\t\"a\" : 1\r}", `{"a":1,}`, `[1,]`, `{"a"}`, `{1:2}`, `"\`, `["\\"]`, "\x00", "\"0123456789abcdef\\n0123456\x1f\"",
	`{"` + strings.Repeat("long text, ", 20) + `":"` + strings.Repeat(`and \"more\" `, 20) + `"}`,
}

func TestValidIsWhatTheStandardLibraryHas(t *testing.T) {
	for _, text := range validSamples {
		if got, want := Valid([]byte(text)), json.Valid([]byte(text)); got != want {
			t.Errorf("%q: %v, want %v", text, got, want)
		}
	}
	if Valid([]byte(strings.Repeat("[", MaxDepth+1) + strings.Repeat("]", MaxDepth+1))) {
		t.Error("deeper than MaxDepth")
	}
}

func FuzzValid(f *testing.F) {
	for _, text := range validSamples {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		got, want := Valid(body), json.Valid(body)
		if got && !want || want && !got && strings.Count(string(body), "[")+strings.Count(string(body), "{") <= MaxDepth {
			t.Fatalf("%q: %v, want %v", body, got, want)
		}
	})
}

func BenchmarkValid(b *testing.B) {
	body := []byte(`{"model":"m","messages":[` + strings.Repeat(`{"role":"user","content":"Some words,\nand \"some\" more of them, up to the end of it."},`, 1000) + `{}]}`)
	b.SetBytes(int64(len(body)))
	for b.Loop() {
		if !Valid(body) {
			b.Fatal("not valid")
		}
	}
}
