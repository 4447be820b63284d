package gateway

import (
	"fmt"
	"math/rand/v2"
	"net"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"
)

// markPattern finds the mark that a request of the storm carries and every piece of its answer repeats.
var markPattern = regexp.MustCompile(`mark-\d+\.`)

// poison is sent where no client may ever see it: behind the end of an answer.
const poison = "poison"

// dice is a source of chance for many goroutines. The order in which they ask is the scheduler's, so a seed repeats the
// mixture and not the run.
type dice struct {
	mu  sync.Mutex
	rng *rand.Rand // guarded by mu
}

func newDice(seed uint64) *dice { return &dice{rng: rand.New(rand.NewPCG(seed, seed))} }

func (d *dice) n(n int) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.rng.IntN(n)
}

// pieces is a good answer to a request, event by event, or in one piece when it does not stream.
func pieces(x *asked, tokens int) (events []string, streams bool) {
	mark := markPattern.FindString(x.body)
	path := strings.Fields(x.head + " ? ?")[1]
	streams = strings.Contains(x.body, `"stream":true`) || strings.Contains(x.body, "name=\"stream\"\r\n\r\ntrue")
	switch {
	case !streams && path == "/v1/embeddings":
		return []string{`{"object":"list","data":[{"object":"embedding","index":0,"embedding":[0.5,1]}],"mark":"` + mark + `","usage":{"prompt_tokens":3,"total_tokens":3}}`}, false
	case !streams:
		return []string{fmt.Sprintf(`{"id":"x","type":"message","choices":[{"index":0,"finish_reason":"stop","message":{"role":"assistant","content":%q}}],"text":%q,"content":[],"usage":{"prompt_tokens":7,"completion_tokens":3}}`, mark, mark)}, false
	case path == messagesPath:
		events = append(events, nativeEvents[0], nativeEvents[2])
		for range tokens {
			events = append(events, messageEvent("content_block_delta", `,"index":0,"delta":{"type":"text_delta","text":"`+mark+`"}`))
		}
		return append(events, nativeEvents[5:]...), true
	case path == "/v1/responses":
		typed := func(kind, rest string) string {
			return "event: response." + kind + "\ndata: {\"type\":\"response." + kind + "\"" + rest + "}\n\n"
		}
		events = append(events, typed("created", `,"response":{"id":"resp_1","status":"in_progress"}`))
		for range tokens {
			events = append(events, typed("output_text.delta", `,"delta":"`+mark+`"`))
		}
		return append(events, typed("completed", `,"response":{"id":"resp_1","status":"completed","usage":{"input_tokens":3,"output_tokens":4}}`)), true
	}
	events = append(events, roleEvent)
	for range tokens {
		events = append(events, delta(mark))
	}
	return append(events, finishEvent, usageEvent, doneEvent), true
}

// rest is a pause of an engine between tokens; it ends early when the gateway closes the connection.
func (d *dice) rest(x *asked) {
	if n := d.n(6); n > 0 {
		select {
		case <-time.After(time.Duration(n) * time.Millisecond):
		case <-x.gone:
		}
	}
}

// misbehave answers a request in one of the ways in which engines have been seen to, half of the time well.
func (d *dice) misbehave(x *asked) {
	events, streams := pieces(x, 1+d.n(6))
	whole := strings.Join(events, "")
	head := "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
	if streams {
		head = sseHead
	}
	some := d.n(len(events) + 1) // events before it goes wrong
	begin := func() {
		x.write(head)
		for _, e := range events[:some] {
			x.write(chunk(e))
			d.rest(x)
		}
	}
	switch d.n(36) {
	case 0: // dies in prefill
		x.conn.Close()
	case 1:
		x.write(head[:len(head)/2])
		x.conn.Close()
	case 2: // stalls before and after its head
		hold(x)
	case 3:
		x.write(head)
		hold(x)
	case 4:
		begin()
		hold(x)
	case 5: // dies between events, in the middle of one, in the middle of a chunk, with RST
		begin()
		x.conn.Close()
	case 6:
		begin()
		x.write(chunk(whole[:len(whole)/3]))
		leaveBy(x.conn, true)
	case 7:
		begin()
		x.write("ff\r\n" + whole[:len(whole)/3])
		x.conn.Close()
	case 8: // talks nonsense
		x.write("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + poison + "\r\n\r\n")
		x.conn.Close()
	case 9:
		begin()
		x.write("zz\r\n" + poison + "\r\n")
	case 10:
		x.write("HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n" + poison)
	case 11: // errors of all kinds, some as 200
		replyJSON(x, 429, `{"error":{"message":"slow down","type":"rate"}}`, "Retry-After: 1")
	case 12:
		replyJSON(x, 503, "busy", "Retry-After: 2")
	case 13:
		replyJSON(x, 500, "<html>oops</html>")
	case 14:
		replyJSON(x, 200, `{"error":{"message":"no"}}`)
	case 15:
		begin()
		x.write(chunk("data: {\"error\":{\"message\":\"cuda died\"}}\n\n") + "0\r\n\r\n")
	case 16:
		replyJSON(x, 307, "", "Location: http://169.254.169.254/"+poison)
	case 17: // old engines end with their connection, or too early with it
		x.write(strings.Replace(strings.Replace(head, "1.1", "1.0", 1), "Transfer-Encoding: chunked\r\n", "", 1) + whole)
		x.conn.Close()
	case 18:
		x.write(fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(whole)+10, whole))
		x.conn.Close()
	case 19: // more than was asked for
		x.write(head + chunk(whole) + "0\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n" + poison)
	case 20:
		x.write("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + head + chunk(whole) + "0\r\n\r\n")
	case 21: // good, and gone before the connection is used again
		x.write(head + chunk(whole) + "0\r\n\r\n")
		x.conn.Close()
	case 22: // a byte a chunk
		x.write(head)
		for i := range len(whole) {
			x.write(chunk(whole[i : i+1]))
		}
		x.write("0\r\n\r\n")
	default:
		some = len(events)
		begin()
		x.write("0\r\n\r\n")
	}
}

// deafEngine takes connections and never reads a byte.
func deafEngine(t *testing.T) *engine {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	var conns []net.Conn
	all.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			conns = append(conns, c)
		}
	})
	t.Cleanup(func() {
		ln.Close()
		all.Wait()
		for _, c := range conns {
			c.Close()
		}
	})
	return &engine{addr: ln.Addr().String()}
}
