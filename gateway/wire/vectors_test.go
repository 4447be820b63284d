package wire

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
)

// convert feeds an answer in pieces of n bytes.
func convert(wantBase64 bool, answer string, n int) (string, *Vectors, error) {
	v := &Vectors{Base64: wantBase64}
	var out []byte
	for i := 0; i < len(answer); i += n {
		var err error
		if out, err = v.Feed(out, []byte(answer[i:min(i+n, len(answer))])); err != nil {
			return string(out), v, err
		}
	}
	return string(out), v, v.End()
}

func packed(vector []float32) string {
	raw := make([]byte, 0, 4*len(vector))
	for _, x := range vector {
		raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(x))
	}
	return base64.StdEncoding.EncodeToString(raw)
}

// both returns an answer with three vectors of so many floats, in both forms.
func both(size int) (floats, base string) {
	rnd := rand.New(rand.NewPCG(1, 2))
	build := func(form func([]float32) any) string {
		var b strings.Builder
		b.WriteString(`{"object":"list","note":"\"embedding\":[1]","data":[`)
		for i := range 3 {
			if i > 0 {
				b.WriteString(", ")
			}
			rnd = rand.New(rand.NewPCG(1, uint64(i)))
			vector := make([]float32, size)
			for j := range vector {
				vector[j] = rnd.Float32()*2 - 1
			}
			text, _ := json.Marshal(form(vector))
			b.WriteString(`{"index":` + string(rune('0'+i)) + `,"object":"embedding","embedding":` + string(text) + `}`)
		}
		b.WriteString(`],"model":"m","more":{"data":[{"embedding":[1]}]},"usage":{"prompt_tokens":3,"total_tokens":3}}`)
		return b.String()
	}
	return build(func(v []float32) any { return v }), build(func(v []float32) any { return packed(v) })
}

func TestVectorsBothWays(t *testing.T) {
	for _, size := range []int{0, 1, 2, 3, 95, 96, 97, 1024} {
		floats, base := both(size)
		for _, n := range []int{1, 2, 7, 100, 1 << 20} {
			if got, v, err := convert(true, floats, n); err != nil || got != base || !v.Changed || !v.Found {
				t.Fatalf("size %d, pieces of %d: %v\n%.300s\n%.300s", size, n, err, got, base)
			}
			if got, v, err := convert(false, base, n); err != nil || got != floats || !v.Changed {
				t.Fatalf("size %d, pieces of %d: %v\n%.300s\n%.300s", size, n, err, got, floats)
			}
			for _, right := range []struct {
				base64 bool
				answer string
			}{{true, base}, {false, floats}} {
				if got, v, err := convert(right.base64, right.answer, n); err != nil || got != right.answer || v.Changed || !v.Found {
					t.Fatalf("size %d, pieces of %d: what was right was changed (%v)", size, n, err)
				}
			}
		}
	}
}

func TestVectorsOfOddForms(t *testing.T) {
	for name, c := range map[string]struct {
		base64    bool
		give, get string // no get: an error
	}{
		"spaces":          {true, `{"data":[{"embedding":[ 1 , -0.5e1 ]}]}`, `{"data":[{"embedding":"` + packed([]float32{1, -5}) + `"}]}`},
		"null passes":     {true, `{"data":[{"embedding":null}]}`, `{"data":[{"embedding":null}]}`},
		"escaped slash":   {false, `{"data":[{"embedding":"AAD\/Pw=="}]}`, `{"data":[{"embedding":[1.9921875]}]}`},
		"slash":           {false, `{"data":[{"embedding":"` + strings.ReplaceAll(packed([]float32{-1.9999999, 3}), "/", `\/`) + `"}]}`, `{"data":[{"embedding":[-1.9999999,3]}]}`},
		"an error object": {true, `{"error":{"message":"x","data":[{"embedding":[1]}]}}`, `{"error":{"message":"x","data":[{"embedding":[1]}]}}`},
		"other depth":     {true, `{"data":[[{"embedding":[1]}]]}`, `{"data":[[{"embedding":[1]}]]}`},
		"other name":      {true, `{"data":[{"embeddings":[1],"xembedding":[2]}]}`, `{"data":[{"embeddings":[1],"xembedding":[2]}]}`},
		"nested":          {true, `{"data":[{"embedding":[[1]]}]}`, ``},
		"text inside":     {true, `{"data":[{"embedding":["1"]}]}`, ``},
		"two commas":      {true, `{"data":[{"embedding":[1,,2]}]}`, ``},
		"comma last":      {true, `{"data":[{"embedding":[1,]}]}`, ``},
		"comma first":     {true, `{"data":[{"embedding":[,1]}]}`, ``},
		"no comma":        {true, `{"data":[{"embedding":[1 2]}]}`, ``},
		"NaN":             {true, `{"data":[{"embedding":[NaN]}]}`, ``},
		"too large":       {true, `{"data":[{"embedding":[1e99]}]}`, ``},
		"leading zero":    {true, `{"data":[{"embedding":[01]}]}`, ``},
		"cut":             {true, `{"data":[{"embedding":[1,2`, ``},
		"cut base64":      {false, `{"data":[{"embedding":"AACA`, ``},
		"not whole":       {false, `{"data":[{"embedding":"AACAPwA="}]}`, ``},
		"not base64":      {false, `{"data":[{"embedding":"AA*A"}]}`, ``},
		"after padding":   {false, `{"data":[{"embedding":"AACAPw==AACAPw=="}]}`, ``},
		"infinite":        {false, `{"data":[{"embedding":"AACAfw=="}]}`, ``},
	} {
		for _, n := range []int{1, 5, 1 << 20} {
			got, _, err := convert(c.base64, c.give, n)
			if c.get == "" && !errors.Is(err, ErrVector) || c.get != "" && (err != nil || got != c.get) {
				t.Errorf("%s, pieces of %d: %v, %s", name, n, err, got)
			}
		}
	}
}

func TestVectorsAllocateNothing(t *testing.T) {
	floats, base := both(300)
	a, b := []byte(floats), []byte(base)
	dst := make([]byte, 0, 4*len(a))
	v := Vectors{}
	allocFree(t, "vectors", func() {
		v.Base64 = true
		v.Reset()
		v.Feed(dst[:0], a)
		v.Base64 = false
		v.Reset()
		v.Feed(dst[:0], b)
	})
}

func BenchmarkVectors(b *testing.B) {
	floats, _ := both(4096)
	p := []byte(floats)
	dst := make([]byte, 0, len(p))
	b.SetBytes(int64(len(p)))
	v := Vectors{Base64: true}
	for b.Loop() {
		v.Reset()
		if _, err := v.Feed(dst[:0], p); err != nil {
			b.Fatal(err)
		}
	}
}

// FuzzVectors holds that any answer passes alike whole and cut, that valid JSON stays valid, and that nothing panics.
func FuzzVectors(f *testing.F) {
	floats, base := both(5)
	f.Add([]byte(floats), true, 3)
	f.Add([]byte(base), false, 9)
	f.Fuzz(func(t *testing.T, p []byte, wantBase64 bool, cut int) {
		whole, _, err := convert(wantBase64, string(p), len(p)+1)
		pieces, _, err2 := convert(wantBase64, string(p), 1+abs(cut)%64)
		if (err == nil) != (err2 == nil) || err == nil && whole != pieces {
			t.Fatalf("%v %q, in pieces %v %q", err, whole, err2, pieces)
		}
		if err == nil && json.Valid(p) && !json.Valid([]byte(whole)) {
			t.Fatalf("%q became %q", p, whole)
		}
	})
}

func abs(n int) int { return max(n, -(n + 1)) }
