package agent

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strconv"
	"time"

	"sluice/nodes"
)

const (
	// maxFollowers bounds the requests that follow a log; one more is 503.
	maxFollowers   = 64
	followPollMs   = 200
	defaultTail    = 64 << 10
	maxTailBytes   = 16 << 20
	maxLeaseBody   = 4 << 10
	readHeaderMs   = 5000
	idleMs         = 60_000
	shutdownMs     = 1000
	maxGatewayName = 256
)

// listener serves leases, logs and the state.
type listener struct {
	o         *owner
	followers chan struct{}
}

// serve runs the listener until ctx ends.
func (o *owner) serve(ctx context.Context, ln net.Listener) {
	l := &listener{o: o, followers: make(chan struct{}, maxFollowers)}
	srv := &http.Server{
		Handler: l.handler(), ReadHeaderTimeout: readHeaderMs * time.Millisecond, IdleTimeout: idleMs * time.Millisecond,
		BaseContext: func(net.Listener) context.Context { return ctx }, TLSConfig: o.cfg.TLS,
		ErrorLog: slog.NewLogLogger(o.cfg.Log.Handler(), slog.LevelWarn),
	}
	o.workers.Go(func() {
		<-ctx.Done()
		stop, cancel := context.WithTimeout(context.Background(), shutdownMs*time.Millisecond)
		defer cancel()
		_ = srv.Shutdown(stop)
		_ = srv.Close()
	})
	o.workers.Go(func() {
		err := error(nil)
		if o.cfg.TLS != nil {
			err = srv.ServeTLS(ln, "", "")
		} else {
			err = srv.Serve(ln)
		}
		if !errors.Is(err, http.ErrServerClosed) {
			o.fail(err)
		}
	})
}

func (l *listener) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/leases/{replica}", l.lease)
	mux.HandleFunc("DELETE /v1/leases/{replica}", l.giveBack)
	mux.HandleFunc("GET /v1/holders/{id}/log", l.log)
	mux.HandleFunc("GET /v1/state", l.state)
	check := l.o.cfg.CheckBearer
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if check != nil && !check(r.Header.Get("Authorization")) {
			w.Header().Set("WWW-Authenticate", "Bearer")
			reply(w, http.StatusUnauthorized, map[string]any{"error": "the cluster's agent key is needed, which only its servers and agents have; read logs through the control port"})
			return
		}
		mux.ServeHTTP(w, r)
	})
}

func reply(w http.ResponseWriter, code int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(body)
}

// lease gives or renews a gateway's lease on a replica.
func (l *listener) lease(w http.ResponseWriter, r *http.Request) {
	var body struct {
		Gateway string `json:"gateway"`
	}
	err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxLeaseBody)).Decode(&body)
	if err != nil || body.Gateway == "" || len(body.Gateway) > maxGatewayName {
		reply(w, http.StatusBadRequest, map[string]any{"error": `body must be {"gateway":"ID"}`})
		return
	}
	var ans leaseAnswer
	found := false
	ok := l.o.ask(r.Context(), func() {
		h := l.o.holders[r.PathValue("replica")]
		if found = h != nil && h.rec.Spec.Kind == nodes.KindReplica; found {
			ans = h.leases.renew(body.Gateway, h.serving(), h.rec.Want != "", l.o.cfg.NowMs())
		}
	})
	switch {
	case !ok:
		reply(w, http.StatusServiceUnavailable, map[string]any{"error": "agent is ending"})
	case !found:
		reply(w, http.StatusNotFound, map[string]any{"error": "no such replica on this node"})
	case ans.ttlMs == 0:
		reply(w, http.StatusConflict, map[string]any{"error": ans.why})
	default:
		reply(w, http.StatusOK, map[string]any{"ttlMs": ans.ttlMs})
	}
}

func (l *listener) giveBack(w http.ResponseWriter, r *http.Request) {
	l.o.ask(r.Context(), func() {
		if h := l.o.holders[r.PathValue("replica")]; h != nil {
			h.leases.giveBack(r.URL.Query().Get("gateway"))
		}
	})
	w.WriteHeader(http.StatusNoContent)
}

// state tells what the agent knows, for people.
func (l *listener) state(w http.ResponseWriter, r *http.Request) {
	var hello nodes.Hello
	connected := false
	ok := l.o.ask(r.Context(), func() {
		o := l.o
		hello = nodes.Hello{Node: o.node, Term: o.term, Readings: o.readings(), Holders: []nodes.HolderStatus{}}
		connected = o.link != nil
		for _, h := range o.list {
			hello.Holders = append(hello.Holders, h.status())
			hello.Ranks = append(hello.Ranks, h.notes()...)
		}
	})
	if !ok {
		reply(w, http.StatusServiceUnavailable, map[string]any{"error": "agent is ending"})
		return
	}
	reply(w, http.StatusOK, map[string]any{"connected": connected, "state": hello})
}

// log sends the end of a holder's log, which may have ended, and with follow=true
// what comes.
func (l *listener) log(w http.ResponseWriter, r *http.Request) {
	id := r.PathValue("id")
	tail := int64(defaultTail)
	if s := r.URL.Query().Get("tailBytes"); s != "" {
		n, err := strconv.ParseInt(s, 10, 64)
		if err != nil || n < 0 || n > maxTailBytes {
			reply(w, http.StatusBadRequest, map[string]any{"error": "tailBytes must be 0 to 16777216"})
			return
		}
		tail = n
	}
	now, old, ok := l.o.logOf(id)
	if !ok {
		reply(w, http.StatusNotFound, map[string]any{"error": "no such holder on this node, and no log of it"})
		return
	}
	follow := r.URL.Query().Get("follow") == "true"
	if follow {
		select {
		case l.followers <- struct{}{}:
			defer func() { <-l.followers }()
		default:
			reply(w, http.StatusServiceUnavailable, map[string]any{"error": "too many requests follow logs on this node"})
			return
		}
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	f := &follower{now: now, old: old, w: w}
	defer f.close()
	f.tail(tail)
	for follow && f.err == nil {
		_ = http.NewResponseController(w).Flush()
		ended := l.ended(r.Context(), id)
		if !ended && !wait(r.Context(), followPollMs) {
			return
		}
		f.copy()
		if ended {
			return
		}
	}
}

func exists(dir string) bool {
	st, err := os.Stat(dir)
	return err == nil && st.IsDir()
}

// ended says whether a holder will write no more.
func (l *listener) ended(ctx context.Context, id string) bool {
	gone := true
	l.o.ask(ctx, func() {
		h := l.o.holders[id]
		gone = h == nil || h.state == nodes.StateGone
	})
	return gone
}

// follower copies a log through its rotations.
type follower struct {
	now, old string // its files
	w        io.Writer
	f        *os.File
	err      error
}

func (f *follower) open() bool {
	file, err := os.Open(f.now)
	if err != nil {
		return false
	}
	f.f = file
	return true
}

// tail writes the last n bytes, the rotated part included.
func (f *follower) tail(n int64) {
	if !f.open() {
		return
	}
	size := int64(0)
	if st, err := f.f.Stat(); err == nil {
		size = st.Size()
	}
	if old, err := os.Open(f.old); err == nil && size < n {
		if st, err := old.Stat(); err == nil {
			_, _ = old.Seek(max(0, st.Size()-(n-size)), io.SeekStart)
			_, f.err = io.Copy(f.w, old)
		}
		old.Close()
	}
	_, _ = f.f.Seek(max(0, size-n), io.SeekStart)
	f.copy()
}

// copy writes what is new, and goes on to the next file after a rotation.
func (f *follower) copy() {
	if f.f == nil && !f.open() {
		return
	}
	if _, err := io.Copy(f.w, f.f); err != nil {
		f.err = err
		return
	}
	now, err1 := os.Stat(f.now)
	was, err2 := f.f.Stat()
	if err1 == nil && err2 == nil && !os.SameFile(now, was) {
		f.f.Close()
		f.f = nil
		if f.open() {
			_, f.err = io.Copy(f.w, f.f)
		}
	}
}

func (f *follower) close() {
	if f.f != nil {
		f.f.Close()
	}
}
