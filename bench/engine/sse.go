package engine

import (
	"encoding/json"
	"fmt"
)

// fields is a JSON object that is written rarely enough to be a map.
type fields = map[string]any

// appendNamed appends an event that carries its type as name and as field.
func appendNamed(dst []byte, kind string, f fields) []byte {
	f["type"] = kind
	return fmt.Appendf(dst, "event: %s\ndata: %s\n\n", kind, encoded(f))
}

// encoded is v as JSON; v is ours and can be encoded.
func encoded(v any) []byte {
	raw, err := json.Marshal(v)
	if err != nil {
		panic("engine: our own answer cannot be encoded: " + err.Error())
	}
	return raw
}
