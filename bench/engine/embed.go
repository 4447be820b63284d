package engine

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"math"
	"net/http"
)

type embeddingsRequest struct {
	Model          string          `json:"model"`
	Input          json.RawMessage `json:"input"`
	EncodingFormat string          `json:"encoding_format"`
	Dimensions     *int            `json:"dimensions"`
}

// embeddings serves /v1/embeddings: unit vectors that depend on Seed and input
// alone, at the cost of one prefill of all inputs.
func (e *engine) embeddings(w http.ResponseWriter, r *http.Request) {
	body, err := readBody(w, r)
	if err != nil {
		e.writeError(w, err)
		return
	}
	var q embeddingsRequest
	if err := json.Unmarshal(body, &q); err != nil {
		e.writeError(w, badRequest("the body is not a request: %v", err))
		return
	}
	ins, dims, err := e.checkEmbeddings(&q)
	if err != nil {
		e.writeError(w, err)
		return
	}
	tokens := 0
	for _, in := range ins {
		tokens += in.tokens
	}
	if !e.prefillOnly(w, r, tokens) {
		return
	}
	data := make([]any, len(ins))
	for i, in := range ins {
		v := unitVector(mix(e.cfg.Seed^in.hash), dims)
		var encoded any = v
		if q.EncodingFormat == "base64" {
			encoded = base64.StdEncoding.EncodeToString(littleEndian(v))
		}
		data[i] = map[string]any{"object": "embedding", "index": i, "embedding": encoded}
	}
	writeJSON(w, 200, map[string]any{
		"object": "list", "model": e.cfg.ServedModel, "data": data,
		"usage": map[string]int{"prompt_tokens": tokens, "total_tokens": tokens},
	})
}

func (e *engine) checkEmbeddings(q *embeddingsRequest) ([]input, int, error) {
	if err := e.checkModel(q.Model); err != nil {
		return nil, 0, err
	}
	if q.EncodingFormat != "" && q.EncodingFormat != "float" && q.EncodingFormat != "base64" {
		return nil, 0, badRequest("encoding_format must be float or base64, not %q", q.EncodingFormat)
	}
	dims := e.cfg.EmbeddingDims
	if q.Dimensions != nil {
		dims = *q.Dimensions
	}
	if dims < 1 || dims > maxDims {
		return nil, 0, badRequest("dimensions must be 1 to %d, not %d", maxDims, dims)
	}
	ins, err := parseInputs(q.Input)
	if err != nil {
		return nil, 0, badRequest("input %v", err)
	}
	return ins, dims, nil
}

func unitVector(seed uint64, dims int) []float32 {
	v := make([]float32, dims)
	var sum float64
	for i := range v {
		x := float64(mix(seed+uint64(i))>>11)/(1<<53)*2 - 1
		v[i] = float32(x)
		sum += x * x
	}
	norm := float32(1 / math.Sqrt(sum))
	for i := range v {
		v[i] *= norm
	}
	return v
}

func littleEndian(v []float32) []byte {
	out := make([]byte, 0, 4*len(v))
	for _, x := range v {
		out = binary.LittleEndian.AppendUint32(out, math.Float32bits(x))
	}
	return out
}
