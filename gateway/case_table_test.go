package gateway

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"sluice/router"
)

// shifting is a gateway whose table and keys change under its requests.
type shifting struct {
	*floor
	engines []*engine
	keys    atomic.Pointer[keyring]
}

func (s *shifting) Empty() bool { return false }

func (s *shifting) Lookup(hash []byte) (Key, bool) { return s.keys.Load().Lookup(hash) }

func openShifting(t *testing.T) *shifting {
	s := &shifting{}
	for range 3 {
		s.engines = append(s.engines, startEngine(t, func(x *asked) {
			events, streams := pieces(x, 3)
			if !streams {
				replyJSON(x, 200, events[0])
				return
			}
			stream(x, events...)
		}))
	}
	s.keys.Store(&keyring{hashOf("sk-1"): {ID: "k", Tenant: "t"}})
	s.floor = open(t, s, nil, s.engines...)
	s.change(0)
	return s
}

// change makes step i of all that may change while requests run: replicas leave and come, a version is rolled out, a
// model beside comes and goes, aliases move, limits and other keys change.
func (s *shifting) change(i int) {
	m := router.Model{Name: "m", Aliases: []string{"alias", fmt.Sprintf("name-%d", i%3)}, Current: fmt.Sprint(i % 4), RequestTimeoutMs: int64(20_000 + i%7)}
	for n, e := range s.engines {
		if n == i%3 {
			continue // leaves, to come back with the next step
		}
		m.Replicas = append(m.Replicas, router.Replica{ID: fmt.Sprintf("r%d-%d", n, i%2), Addr: e.addr, MaxInFlight: 32 + i%2, Version: fmt.Sprint(i % 4), UpstreamModel: fmt.Sprintf("real-%d", i%2)})
	}
	models := []router.Model{m}
	if i%2 == 0 {
		models = append(models, router.Model{Name: "beside", Replicas: []router.Replica{{ID: "b", Addr: s.engines[0].addr, MaxInFlight: 1}}})
	}
	table, err := router.NewTable(models)
	if err != nil {
		s.t.Fatal(err)
	}
	s.table.Store(table)
	s.router.SetTable(table)
	s.keys.Store(&keyring{hashOf("sk-1"): {ID: "k", Tenant: "t", Limits: Limits{Concurrent: 100 + i%3, RequestsPerMin: 1 << 20}, TenantLimits: Limits{TokensPerMin: 1 << 40}},
		hashOf(fmt.Sprintf("sk-%d", 2+i%2)): {ID: "other", Tenant: "t"}})
}

func TestCase_RT_10_NothingIsDroppedWhileTablesChange(t *testing.T) {
	s := openShifting(t)
	changes := 60
	if testing.Short() {
		changes = 20
	}
	ctx := make(chan struct{})
	var clients sync.WaitGroup
	var asked atomic.Int64
	for range 6 {
		clients.Go(func() {
			c, err := net.Dial("tcp", s.addr)
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			br := bufio.NewReader(c)
			for {
				select {
				case <-ctx:
					return
				default:
				}
				n := asked.Add(1)
				kind := stormBodies[n%3] // chats: streamed, by alias, whole
				mark := fmt.Sprintf("mark-%d.", n)
				c.SetDeadline(time.Now().Add(30 * time.Second))
				io.WriteString(c, post(kind.path, fmt.Sprintf(kind.body, mark), bearer))
				res, err := http.ReadResponse(br, nil)
				if err != nil {
					t.Error(n, err)
					return
				}
				body, err := io.ReadAll(res.Body)
				if err != nil || res.StatusCode != 200 || !strings.Contains(string(body), mark) {
					t.Errorf("%d: %d %v %s", n, res.StatusCode, err, body)
				}
			}
		})
	}
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for i := range changes {
		<-tick.C
		s.change(i)
	}
	close(ctx)
	clients.Wait()
	s.deserted()
	s.settled(s.begun)
	s.idle(t)

	// The engine that left last is asked nothing more, and its idle connections are closed.
	gone := s.engines[(changes-1)%3]
	until(t, "it is idle", func() bool { return gone.running.Load() == 0 })
	before := gone.served.Load()
	for range 20 {
		if a := s.do("/v1/chat/completions", chat, bearer); a.status != 200 {
			t.Fatalf("%+v", a)
		}
	}
	if n := gone.served.Load() - before; n != 0 {
		t.Errorf("%d requests went to an engine that is not in the table", n)
	}
	until(t, "its connections are closed", func() bool { return gone.open.Load() == 0 })
	t.Logf("%d requests, %d changes", asked.Load(), changes)
}
