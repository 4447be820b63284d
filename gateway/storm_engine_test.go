package gateway

import (
	"fmt"
	"math/rand/v2"
	"net"
	"regexp"
	"slices"
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

// part is an engine's part in the storm: a good answer, of which it tells some before it goes wrong.
type part struct {
	*asked
	head   string
	events []string
	whole  string
	begin  func() // tells its head and its first events
}

// misbehave answers a request in one of the ways in which engines have been seen to, a third of the time well.
func (d *dice) misbehave(x *asked) {
	events, streams := pieces(x, 1+d.n(6))
	p := part{asked: x, events: events, whole: strings.Join(events, "")}
	p.head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
	if streams {
		p.head = sseHead
	}
	tell := func(events []string) {
		x.write(p.head)
		for _, e := range events {
			x.write(chunk(e))
			d.rest(x)
		}
	}
	some := events[:d.n(len(events)+1)]
	p.begin = func() { tell(some) }
	if ways := append(slices.Clone(deaths), answers...); d.n(3) > 0 {
		ways[d.n(len(ways))](&p)
		return
	}
	tell(events)
	x.write("0\r\n\r\n")
}

// deaths are ways to end without a whole answer.
var deaths = []func(p *part){
	func(p *part) { p.conn.Close() }, // in prefill
	func(p *part) { p.write(p.head[:len(p.head)/2]); p.conn.Close() },
	func(p *part) { hold(p.asked) },
	func(p *part) { p.write(p.head); hold(p.asked) },
	func(p *part) { p.begin(); hold(p.asked) },
	func(p *part) { p.begin(); p.conn.Close() }, // between events, in the middle of one, in the middle of a chunk
	func(p *part) { p.begin(); p.write(chunk(p.whole[:len(p.whole)/3])); leaveBy(p.conn, true) },
	func(p *part) { p.begin(); p.write("ff\r\n" + p.whole[:len(p.whole)/3]); p.conn.Close() },
	func(p *part) { // nonsense
		p.write("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + poison + "\r\n\r\n")
		p.conn.Close()
	},
	func(p *part) { p.begin(); p.write("zz\r\n" + poison + "\r\n") },
	func(p *part) {
		p.write("HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n" + poison)
	},
	func(p *part) { // shorter than it said
		p.write(fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(p.whole)+10, p.whole))
		p.conn.Close()
	},
}

// answers are errors of all kinds, and whole answers of odd form.
var answers = []func(p *part){
	func(p *part) {
		replyJSON(p.asked, 429, `{"error":{"message":"slow down","type":"rate"}}`, "Retry-After: 1")
	},
	func(p *part) { replyJSON(p.asked, 503, "busy", "Retry-After: 2") },
	func(p *part) { replyJSON(p.asked, 500, "<html>oops</html>") },
	func(p *part) { replyJSON(p.asked, 200, `{"error":{"message":"no"}}`) },
	func(p *part) {
		p.begin()
		p.write(chunk("data: {\"error\":{\"message\":\"cuda died\"}}\n\n") + "0\r\n\r\n")
	},
	func(p *part) { replyJSON(p.asked, 307, "", "Location: http://169.254.169.254/"+poison) },
	func(p *part) { // ends with its connection
		p.write(strings.Replace(strings.Replace(p.head, "1.1", "1.0", 1), "Transfer-Encoding: chunked\r\n", "", 1) + p.whole)
		p.conn.Close()
	},
	func(p *part) { // more than was asked for
		p.write(p.head + chunk(p.whole) + "0\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n" + poison)
	},
	func(p *part) {
		p.write("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + p.head + chunk(p.whole) + "0\r\n\r\n")
	},
	func(p *part) { p.write(p.head + chunk(p.whole) + "0\r\n\r\n"); p.conn.Close() }, // gone before its connection is used again
	func(p *part) { // a byte a chunk
		p.write(p.head)
		for i := range len(p.whole) {
			p.write(chunk(p.whole[i : i+1]))
		}
		p.write("0\r\n\r\n")
	},
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
