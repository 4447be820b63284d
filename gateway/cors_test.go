package gateway

import (
	"bufio"
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
)

const app = "https://app.example.test"

func preflight(path, origin, method, headers string) string {
	return fmt.Sprintf("OPTIONS %s HTTP/1.1\r\nHost: x\r\nOrigin: %s\r\nAccess-Control-Request-Method: %s\r\nAccess-Control-Request-Headers: %s\r\n\r\n", path, origin, method, headers)
}

// corsHeaders are the names of CORS headers that an answer has.
func corsHeaders(a answer) (names []string) {
	for name := range a.header {
		if strings.HasPrefix(name, "Access-Control-") || name == "Vary" {
			names = append(names, name)
		}
	}
	return names
}

func TestCase_GW_28_browser_preflight(t *testing.T) {
	e := startEngine(t, func(a *asked) {
		if strings.Contains(a.body, "stream") {
			stream(a, delta("a"), doneEvent)
			return
		}
		replyJSON(a, 200, jsonAnswer, "Access-Control-Allow-Origin: *", "Access-Control-Allow-Credentials: true")
	})
	keys := keyring{hashOf("sk-1"): {ID: "k"}}
	off := open(t, keys, nil, e)
	allow := func(c *Config) { c.CORSOrigins = []string{"http://localhost:3000", app} }
	f := open(t, keys, allow, e)
	paths := []string{"/v1/models", "/v1/models/m", "/v1/models/org/name"}
	for path := range endpoints {
		paths = append(paths, path)
	}
	const asked = "authorization,content-type, X-Api-Key,anthropic-version,openai-beta,x-stainless-os,evil,bad name,x-\"q"
	for _, path := range paths {
		a := f.ask(preflight(path, app, "POST", asked))
		h := a.header
		if a.status != 204 || a.body != "" || h.Get("Access-Control-Allow-Origin") != app || !strings.Contains(h.Get("Access-Control-Allow-Methods"), "POST") ||
			h.Get("Access-Control-Allow-Headers") != "authorization, content-type, x-api-key, anthropic-version, openai-beta, x-stainless-os" ||
			h.Get("Access-Control-Allow-Credentials") != "" || !slices.Contains(h.Values("Vary"), "Origin") {
			t.Errorf("%s: %+v", path, a)
		}
	}
	if e.served.Load() != 0 {
		t.Fatal("an engine was asked")
	}
	allowedOriginIsOnEveryAnswer(t, f)
	otherOriginsLearnNothing(t, f, off)
}

// ask sends a request as text on a connection of its own.
func (f *floor) ask(text string) answer {
	c := f.raw(text)
	defer c.Close()
	return readAnswer(bufio.NewReader(c))
}

func allowedOriginIsOnEveryAnswer(t *testing.T, f *floor) {
	for name, c := range map[string]struct {
		text   string
		status int
	}{
		"no key":     {post("/v1/chat/completions", chat, "Origin: "+app), 401},
		"good":       {post("/v1/chat/completions", chat, "Origin: "+app, "X-Api-Key: sk-1"), 200},
		"stream":     {post("/v1/chat/completions", chatStream, "Origin: "+app, "X-Api-Key: sk-1"), 200},
		"bad body":   {post("/v1/chat/completions", "{", "Origin: "+app, "X-Api-Key: sk-1"), 400},
		"not found":  {post("/v1/nothing", chat, "Origin: "+app, "X-Api-Key: sk-1"), 404},
		"models":     {"GET /v1/models HTTP/1.1\r\nHost: x\r\nX-Api-Key: sk-1\r\nOrigin: " + app + "\r\n\r\n", 200},
		"unreadable": {post("/v1/chat/completions", strings.Repeat(" ", 66<<10), "Origin: "+app), 401}, // fits the socket: a larger one may meet its refusal in mid-write
	} {
		a := f.ask(c.text)
		if a.status != c.status || strings.Join(a.header.Values("Access-Control-Allow-Origin"), ",") != app || a.header.Get("Access-Control-Allow-Credentials") != "" ||
			!exposesAll(a.header.Get("Access-Control-Expose-Headers")) {
			t.Errorf("%s: %d %v", name, a.status, a.header)
		}
	}
}

// exposesAll: a page may read every header that tells of the request and its limits.
func exposesAll(list string) bool {
	for _, name := range []string{"X-Request-Id", "Request-Id", "Retry-After", "X-Ratelimit-Reset-Requests", "X-Ratelimit-Remaining-Tokens",
		"X-Ratelimit-Limit-Concurrent", "X-Ratelimit-Remaining-Concurrent"} {
		if !slices.Contains(strings.Split(list, ", "), name) {
			return false
		}
	}
	return true
}

// otherOriginsLearnNothing: another origin, and CORS switched off, are as if there were no such thing.
func otherOriginsLearnNothing(t *testing.T, f, off *floor) {
	for name, c := range map[string]struct {
		f      *floor
		origin string
	}{"another origin": {f, "https://evil.example"}, "a longer origin": {f, app + ".evil"}, "null": {f, "null"}, "off": {off, app}} {
		for text, status := range map[string]int{
			preflight("/v1/chat/completions", c.origin, "POST", "authorization"):           405,
			preflight("/v1/nothing", c.origin, "POST", "authorization"):                    404,
			post("/v1/chat/completions", chat, "Origin: "+c.origin, "X-Api-Key: sk-1"):     200,
			post("/v1/chat/completions", chat, "Origin: "+c.origin, "X-Api-Key: sk-wrong"): 401,
		} {
			a := c.f.ask(text)
			for _, header := range corsHeaders(a) {
				if header != "Vary" || c.f == off { // what caches must know is said to everybody
					t.Errorf("%s: %.40q: %s", name, text, header)
				}
			}
			if a.status != status {
				t.Errorf("%s: %.40q: %d, want %d", name, text, a.status, status)
			}
		}
	}
}

func TestEveryOriginWithoutCredentials(t *testing.T) {
	f := open(t, nil, func(c *Config) { c.CORSOrigins = []string{"*"} })
	c := f.raw(preflight("/v1/chat/completions", "https://any.example", "POST", "authorization"))
	a := readAnswer(bufio.NewReader(c))
	if a.status != 204 || a.header.Get("Access-Control-Allow-Origin") != "*" || a.header.Get("Access-Control-Allow-Credentials") != "" {
		t.Fatalf("%+v", a)
	}
}

func TestOriginsAreChecked(t *testing.T) {
	for _, bad := range []string{"app.example", "https://app.example/", "https://App.example", "ftp://x", "null", "", "https://", "https://a\r\nX: y", "https://u@h", "https://*.x"} {
		cfg := Default()
		cfg.CORSOrigins = []string{bad}
		if srv, err := New(cfg, Deps{}); err == nil || !strings.Contains(err.Error(), "corsOrigins") {
			if srv != nil {
				srv.Shutdown(context.Background())
			}
			t.Errorf("%q: %v", bad, err)
		}
	}
}
