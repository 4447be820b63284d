package rig

import (
	"bytes"
	"slices"
	"testing"
)

// takeAll feeds p to a reader in pieces of n bytes and returns the bodies of the answers that ended, and an open one's.
func takeAll(d *reader, p []byte, n int) (bodies []string, open string) {
	for piece := range slices.Chunk(p, n) {
		for len(piece) > 0 && !d.broken {
			body, rest, done := d.next(piece)
			open += string(body)
			piece = rest
			if done {
				bodies, open = append(bodies, open), ""
			}
		}
	}
	return bodies, open
}

func TestReaderTakesAnswersInAnyPieces(t *testing.T) {
	wire := []byte("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello" +
		"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\nX: y\r\n\r\n3\r\nabc\r\n0a;ext=1\r\n0123456789\r\n0\r\n\r\n" +
		"HTTP/1.1 204 No Content\r\n\r\n" +
		"HTTP/1.0 200 OK\r\nServer: x\r\n\r\nuntil the end")
	for n := 1; n <= len(wire); n++ {
		var d reader
		bodies, open := takeAll(&d, wire, n)
		if want := []string{"hello", "abc0123456789", ""}; !slices.Equal(bodies, want) || open != "until the end" || d.broken {
			t.Fatalf("in pieces of %d: %q and open %q, broken %v", n, bodies, open, d.broken)
		}
		if !d.head.old || !d.head.close || d.state != untilClose {
			t.Fatalf("in pieces of %d: the last head was read as %+v", n, d.head)
		}
	}
}

func TestReaderTakesRequests(t *testing.T) {
	wire := append(Request("m", "key", 700, true, 7), "GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"...)
	for _, n := range []int{1, 100, len(wire)} {
		var d reader
		bodies, _ := takeAll(&d, wire, n)
		if len(bodies) != 2 || len(bodies[0]) != 700 || !bytes.Contains([]byte(bodies[0]), trialMark) || bodies[1] != "" {
			t.Fatalf("in pieces of %d: %q", n, bodies)
		}
		if d.head.chat || !d.head.ask || !d.head.close {
			t.Fatalf("in pieces of %d: %+v", n, d.head)
		}
	}
}

func TestReaderRefusesWhatIsNone(t *testing.T) {
	for _, wire := range []string{
		"nonsense\r\n\r\n",
		"HTTP/1.1 2x0 OK\r\n\r\n",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n123456789a\r\n",
		"HTTP/1.1 200 OK\r\nX: " + string(bytes.Repeat([]byte("a"), maxHeadBytes)),
	} {
		var d reader
		takeAll(&d, []byte(wire), 7)
		if !d.broken {
			t.Errorf("%.40q was taken", wire)
		}
	}
}

func TestScannerFindsTokensInAnyPieces(t *testing.T) {
	event, at := newEvent()
	var wire []byte
	var want []int64
	for i := range int64(5) {
		ns := 1_000_000_007 * (i + 1)
		stamp(event[at:], ns)
		wire, want = append(wire, event...), append(want, ns)
	}
	wire = append(wire, finishEvent+doneEvent...)
	for n := 1; n <= len(wire); n++ {
		var s scanner
		var got []int64
		for piece := range slices.Chunk(wire, n) {
			s.feed(piece, func(ns int64) { got = append(got, ns) })
		}
		if !slices.Equal(got, want) || !s.done || s.bad {
			t.Fatalf("in pieces of %d: %v, done %v, bad %v", n, got, s.done, s.bad)
		}
	}
}

func TestScannerSeesErrors(t *testing.T) {
	var s scanner
	s.feed([]byte("data: {\"error\":{\"message\":\"x\"}}\n\n"), func(int64) { t.Error("a token") })
	if !s.bad {
		t.Error("an error event passed for an answer")
	}
}

func TestPreparedMessagesHaveTheirSizes(t *testing.T) {
	_, body, _ := bytes.Cut(PlainAnswer(1024), blankLine)
	if len(body) != 1024 {
		t.Errorf("the answer has %d bytes", len(body))
	}
	if _, body, _ = bytes.Cut(Request("m", "", 128<<10, false, -1), blankLine); len(body) != 128<<10 {
		t.Errorf("the request has %d bytes", len(body))
	}
}
