package gateway

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// lockstep is an engine that sends the next event only when it is told that the last one has arrived: whoever holds
// events back in between is found out without a clock.
func lockstep(t *testing.T, events int) (e *engine, arrived chan struct{}) {
	arrived = make(chan struct{})
	e = startEngine(t, func(a *asked) {
		a.write(sseHead)
		for i := range events {
			a.write(chunk(delta(fmt.Sprint(i))))
			select {
			case <-arrived:
			case <-a.gone:
				return
			}
		}
		a.write(chunk(finishEvent) + chunk(doneEvent) + "0\r\n\r\n")
	})
	return e, arrived
}

// follow reads a stream, event by event, and returns its head.
func follow(t *testing.T, c net.Conn, events int, arrived chan struct{}) (head string) {
	br := bufio.NewReader(c)
	seen := 0
	for {
		line, err := br.ReadString('\n')
		if err != nil {
			t.Fatalf("after %d of %d events: %v", seen, events, err)
		}
		switch {
		case seen == 0 && !strings.HasPrefix(line, "data:"):
			head += line
		case strings.Contains(line, fmt.Sprintf(`"content":"%d"`, seen)):
			seen++
			select {
			case arrived <- struct{}{}:
			case <-time.After(20 * time.Second):
				t.Fatalf("event %d came, and nobody waits for it", seen)
			}
		case strings.Contains(line, "[DONE]"):
			if seen != events {
				t.Fatalf("%d of %d events", seen, events)
			}
			return strings.ToLower(head)
		}
	}
}

func TestCase_GW_17_events_are_not_held_back(t *testing.T) {
	const events = 50
	e, arrived := lockstep(t, events)
	f := open(t, nil, nil, e)
	head := follow(t, f.raw(post("/v1/chat/completions", chatStream)), events, arrived)
	for _, want := range []string{"x-accel-buffering: no\r\n", "cache-control: no-cache\r\n", "content-type: text/event-stream\r\n", "transfer-encoding: chunked\r\n"} {
		if !strings.Contains(head, want) {
			t.Errorf("%q is missing: %q", want, head)
		}
	}
	if strings.Contains(head, "content-length") {
		t.Error(head)
	}
}

// behindNginx starts an nginx with default buffering in front of addr and returns its socket.
func behindNginx(t *testing.T, addr string) (socket string) {
	program, err := exec.LookPath("nginx")
	if err != nil {
		t.Skip("nginx is not installed here")
	}
	dir, err := os.MkdirTemp("", "edge-") // short: it holds a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	socket = filepath.Join(dir, "s")
	conf := filepath.Join(dir, "nginx.conf")
	var temp strings.Builder
	for _, kind := range []string{"client_body", "proxy", "fastcgi", "uwsgi", "scgi"} {
		fmt.Fprintf(&temp, "  %s_temp_path %s/%s;\n", kind, dir, kind)
	}
	text := fmt.Sprintf(`daemon off;
master_process off;
error_log stderr;
pid %s/pid;
events {}
http {
  access_log off;
%s  server {
    listen unix:%s;
    location / {
      proxy_pass http://%s;
      proxy_http_version 1.1;
    }
  }
}
`, dir, temp.String(), socket, addr)
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	cmd := exec.Command(program, "-p", dir, "-c", conf)
	cmd.Stderr = &log
	if err := cmd.Start(); err != nil {
		t.Skipf("nginx does not start here: %v", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() {
		cmd.Process.Kill()
		ended <- <-ended
	})
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for late := time.After(20 * time.Second); ; {
		c, err := net.Dial("unix", socket)
		if err == nil {
			c.Close()
			return socket
		}
		select {
		case <-tick.C:
		case err := <-ended:
			ended <- err
			t.Skipf("nginx does not run here: %v: %s", err, &log)
		case <-late:
			t.Fatal("nginx does not answer within 20 s")
		}
	}
}

func TestCase_GW_17_behind_nginx(t *testing.T) {
	const events = 50
	e, arrived := lockstep(t, events)
	f := open(t, nil, nil, e)
	c, err := net.Dial("unix", behindNginx(t, f.addr))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(30 * time.Second))
	if _, err := c.Write([]byte(post("/v1/chat/completions", chatStream))); err != nil {
		t.Fatal(err)
	}
	if head := follow(t, c, events, arrived); !strings.Contains(head, "server: nginx") {
		t.Fatal(head)
	}
}
