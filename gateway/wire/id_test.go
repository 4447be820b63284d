package wire

import "testing"

func TestAnswerID(t *testing.T) {
	for body, want := range map[string]string{
		`{"id":"resp_a","object":"response","usage":{"input_tokens":5}}`: "resp_a",
		`{"object":"x", "id" : "resp_a"}`:                                "resp_a",
		`{"x":{"id":"inner"},"y":["id","no"],"id":5}`:                    "",
		`{"id":{"id":"inner"}}`:                                          "",
		`{"id":""}`:                                                      "",
		`{"id":"cut`:                                                     "",
		`["id","x"]`:                                                     "",
	} {
		for n := 1; n <= len(body); n++ {
			var s UsageScanner
			for i := 0; i < len(body); i += n {
				s.Feed([]byte(body[i:min(i+n, len(body))]))
			}
			if got := string(s.ID()); got != want {
				t.Errorf("%s in pieces of %d: %q", body, n, got)
			}
		}
	}
}
