package ref

import "testing"

func TestFraming(t *testing.T) {
	for head, want := range map[string]struct {
		length  int
		chunked bool
	}{
		"HTTP/1.1 200 OK\r\ncontent-length: 12\r\n\r\n":         {12, false},
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n": {-1, true},
		"HTTP/1.0 200 OK\r\n\r\n":                               {-1, false},
	} {
		if n, chunked := framing([]byte(head)); n != want.length || chunked != want.chunked {
			t.Errorf("%q: %d, %v", head, n, chunked)
		}
	}
}

func TestTheEndOfChunksIsFoundInAnyPieces(t *testing.T) {
	const wire = "5\r\nhello\r\n0\r\n\r\n"
	for n := 1; n <= len(wire); n++ {
		var tail [7]byte
		for i := 0; i < len(wire); i += n {
			keepTail(&tail, []byte(wire[i:min(i+n, len(wire))]))
			if ended := i+n >= len(wire); lastChunk(tail[:]) != ended {
				t.Fatalf("in pieces of %d, after %d bytes: ended is %v", n, i+n, !ended)
			}
		}
	}
}
