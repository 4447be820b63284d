package storm

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

const (
	soakClients   = 12
	sampleEvery   = 10 * time.Second
	reportEvery   = 6 // samples: a line a minute
	keyEvery      = 3 * time.Second
	restartEvery  = 20 * time.Second
	fewestSamples = 12 // a trend of fewer says nothing
)

// sample is what the program holds at one time.
type sample struct {
	rssMB, routines, files float64
	whole                  int64 // answers until then
}

// TestSoak keeps a server, its agent and its engines under churn for SLUICE_SOAK: clients come, leave and break off,
// engines are killed, keys made and revoked, late answers hedged. Memory, goroutines and descriptors must not grow over
// the second half.
func TestSoak(t *testing.T) {
	text := os.Getenv("SLUICE_SOAK")
	if text == "" {
		t.Skip("SLUICE_SOAK says for how long, as 30m")
	}
	length, err := time.ParseDuration(text)
	if err != nil || length < 2*sampleEvery {
		t.Fatalf("SLUICE_SOAK is %q; write a duration of %v at least, as 30m", text, 2*sampleEvery)
	}
	s := &soak{site: newSite(t, "", "--access-log", os.DevNull)}
	s.secrets.Store(&[]string{})
	s.sluice(`kind: Model
name: chat
aliases: [other]
command: ["`+s.exe+`", engine, --listen, "127.0.0.1:{{port}}", --served-model, chat, --speed, "20", --load-ms, "0", --faults]
engineModel: chat
speaks: [responses]
gpusPerReplica: 2
activeMemory: 72GiB
residentMemory: 2GiB
minReplicas: 3
maxReplicas: 3
maxInFlight: 16
startTimeout: 2m
`, "model", "apply", "-f", "-")
	t.Cleanup(func() { // the server's engines outlive it; this runs before its own end
		s.signal(syscall.SIGKILL)
		for s.kill("") {
		}
	})
	s.serves("chat")
	s.newKey()
	ctx, cancel := context.WithTimeout(t.Context(), length)
	defer cancel()
	var all sync.WaitGroup
	for i := range soakClients {
		all.Go(func() { s.client(ctx, rand.New(rand.NewPCG(uint64(i), 1))) })
	}
	all.Go(func() { every(ctx, keyEvery, s.newKey) })
	all.Go(func() { every(ctx, restartEvery, func() { s.kill("engine\x00") }) })
	var samples []sample
	every(ctx, sampleEvery, func() {
		samples = append(samples, s.sample())
		if len(samples)%reportEvery == 0 {
			last := samples[len(samples)-1]
			t.Logf("%v: %.0f MB, %.0f goroutines, %.0f files; %d requests, %d whole; %s",
				time.Duration(len(samples))*sampleEvery, last.rssMB, last.routines, last.files, s.asked.Load(), s.whole.Load(), s.counters())
		}
	})
	all.Wait()
	s.judge(samples)
}

// every calls f now and then until ctx ends.
func every(ctx context.Context, period time.Duration, f func()) {
	tick := time.NewTicker(period)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			f()
		case <-ctx.Done():
			return
		}
	}
}

type soak struct {
	*site
	secrets      atomic.Pointer[[]string] // of the keys there are
	ids          []string                 // their ids
	asked, whole atomic.Int64
}

// newKey makes a key, and revokes the oldest when there are many.
func (s *soak) newKey() {
	id, secret := s.key("--rpm", "100000")
	s.ids = append(s.ids, id)
	secrets := append(slices.Clone(*s.secrets.Load()), secret)
	if len(s.ids) > 4 {
		s.sluice("", "key", "delete", s.ids[0])
		s.ids, secrets = s.ids[1:], secrets[1:]
	}
	s.secrets.Store(&secrets)
}

// kill kills one of the site's processes, of those whose arguments begin like this. It reports whether there was one.
func (s *soak) kill(args string) bool {
	entries, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, name := range entries {
		raw, _ := os.ReadFile(name)
		if strings.HasPrefix(string(raw), s.exe+"\x00"+args) {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(name)))
			return syscall.Kill(pid, syscall.SIGKILL) == nil
		}
	}
	return false
}

var soakBodies = []struct{ path, body string }{
	{"/v1/chat/completions", `{"model":"chat","stream":true,"max_tokens":40,"messages":[{"role":"user","content":"say %d"}]}`},
	{"/v1/chat/completions", `{"model":"other","max_tokens":20,"messages":[{"role":"user","content":"say %d"}]}`},
	{"/v1/chat/completions", `{"model":"chat","stream":true,"max_tokens":10,"messages":[{"role":"user","content":"fault:die %d"}]}`},
	{"/v1/completions", `{"model":"chat","stream":true,"max_tokens":20,"prompt":"say %d"}`},
	{"/v1/embeddings", `{"model":"chat","input":"text %d"}`},
	{"/v1/messages", `{"model":"chat","stream":true,"max_tokens":20,"messages":[{"role":"user","content":"say %d"}]}`},
	{"/v1/responses", `{"model":"chat","stream":true,"max_output_tokens":20,"input":"say %d"}`},
	{"/v1/chat/completions", `{"model":"no-%d","messages":[]}`},
}

// client asks, in one way or another, until ctx ends.
func (s *soak) client(ctx context.Context, rng *rand.Rand) {
	for ctx.Err() == nil {
		c, err := net.DialTimeout("tcp", s.addr, settleLimit)
		if err != nil {
			s.t.Error(err)
			return
		}
		br := bufio.NewReader(c)
		for range 1 + rng.IntN(20) {
			if ctx.Err() != nil || !s.ask(c, br, rng) {
				break
			}
		}
		if rng.IntN(2) == 0 {
			c.(*net.TCPConn).SetLinger(0)
		}
		c.Close()
	}
}

// ask sends one request. It reports whether the connection can be used again.
func (s *soak) ask(c net.Conn, br *bufio.Reader, rng *rand.Rand) bool {
	kind := soakBodies[rng.IntN(len(soakBodies))]
	secrets := *s.secrets.Load()
	body := fmt.Sprintf(kind.body, rng.Uint32())
	text := fmt.Sprintf("POST %s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nX-Sluice-Class: %s\r\nContent-Length: %d\r\n\r\n%s",
		kind.path, secrets[rng.IntN(len(secrets))], []string{"interactive", "standard"}[rng.IntN(2)], len(body), body)
	c.SetDeadline(time.Now().Add(settleLimit))
	s.asked.Add(1)
	switch rng.IntN(10) {
	case 0:
		io.WriteString(c, text[:rng.IntN(len(text))])
		return false
	case 1:
		io.WriteString(c, text)
		c.SetDeadline(time.Now().Add(time.Duration(rng.IntN(200)) * time.Millisecond))
		io.CopyN(io.Discard, br, int64(rng.IntN(4000)))
		return false
	}
	if _, err := io.WriteString(c, text); err != nil {
		return false
	}
	res, err := http.ReadResponse(br, nil)
	if err != nil {
		return false
	}
	if _, err := io.Copy(io.Discard, res.Body); err != nil || res.Close {
		return false
	}
	if res.StatusCode == 200 {
		s.whole.Add(1)
	}
	return true
}

// metrics are the lines of the control port's /metrics.
func (s *soak) metrics() string {
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", s.socket())
	}}
	defer transport.CloseIdleConnections()
	res, err := (&http.Client{Transport: transport, Timeout: settleLimit}).Get("http://sluice/metrics")
	if err != nil {
		s.t.Error(err)
		return ""
	}
	defer res.Body.Close()
	raw, _ := io.ReadAll(res.Body)
	return string(raw)
}

// value is that of a metric without labels; 0 without it.
func value(metrics, name string) float64 {
	for line := range strings.Lines(metrics) {
		if rest, ok := strings.CutPrefix(line, name+" "); ok {
			v, _ := strconv.ParseFloat(strings.TrimSpace(rest), 64)
			return v
		}
	}
	return 0
}

func (s *soak) counters() string {
	m := s.metrics()
	return fmt.Sprintf("%.0f hedges, %.0f retries, %.0f panics, %.0f KB of metrics", value(m, "sluice_gateway_hedges_total"),
		value(m, "sluice_gateway_retries_total"), value(m, "sluice_gateway_panics_total"), float64(len(m))/1000)
}

func (s *soak) sample() sample {
	proc := fmt.Sprintf("/proc/%d/", s.process.Process.Pid)
	status, _ := os.ReadFile(proc + "status")
	files, _ := os.ReadDir(proc + "fd")
	out := sample{routines: value(s.metrics(), "go_goroutines"), files: float64(len(files)), whole: s.whole.Load()}
	if _, rest, ok := strings.Cut(string(status), "RssAnon:"); ok {
		kb, _ := strconv.ParseFloat(strings.Fields(rest)[0], 64)
		out.rssMB = kb / 1024
	}
	return out
}

// judge fails when the trend over the second half grows, or something is left at the end.
func (s *soak) judge(samples []sample) {
	m := s.metrics()
	if n := value(m, "sluice_gateway_panics_total"); n != 0 {
		s.t.Errorf("%v panics", n)
	}
	for _, gauge := range []string{"sluice_gateway_requests_in_flight", "sluice_gateway_limit_slots_in_use", "sluice_gateway_limit_tokens_reserved"} {
		s.until(gauge+" is 0", func() bool { return value(s.metrics(), gauge) == 0 })
	}
	for i := reportEvery; i < len(samples); i++ {
		if samples[i].whole == samples[i-reportEvery].whole {
			s.t.Errorf("nothing was answered in a minute, %v after the start", time.Duration(i)*sampleEvery)
			break
		}
	}
	half := samples[len(samples)/2:]
	for _, x := range []struct {
		name  string
		of    func(sample) float64
		slack float64 // growth that is no trend
	}{
		{"MB of memory", func(x sample) float64 { return x.rssMB }, 12},
		{"goroutines", func(x sample) float64 { return x.routines }, 40},
		{"files", func(x sample) float64 { return x.files }, 40},
	} {
		mean, growth := trend(half, x.of)
		s.t.Logf("%s: %.0f in the mean of the second half, growing by %.1f", x.name, mean, growth)
		if len(half) >= fewestSamples/2 && growth > max(x.slack, mean/10) {
			s.t.Errorf("%s grow by %.1f over the second half, from a mean of %.0f", x.name, growth, mean)
		}
	}
}

// trend is the mean, and by how much the line of least squares rises from the first sample to the last.
func trend(samples []sample, of func(sample) float64) (mean, growth float64) {
	n := float64(len(samples))
	var sx, sy, sxx, sxy float64
	for i, x := range samples {
		sx, sy, sxx, sxy = sx+float64(i), sy+of(x), sxx+float64(i*i), sxy+float64(i)*of(x)
	}
	if n < 2 {
		return sy / max(n, 1), 0
	}
	return sy / n, (n*sxy - sx*sy) / (n*sxx - sx*sx) * (n - 1)
}
