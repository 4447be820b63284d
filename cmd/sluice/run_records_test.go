package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"sluice/gateway/sink"
)

func TestTracesAreSetByTheEnvironment(t *testing.T) {
	const secret = "planted"
	for _, c := range []struct {
		flag string
		env  map[string]string
		url  string
		fail string
	}{
		{"", nil, "", ""},
		{"http://c:4318", nil, "http://c:4318/v1/traces", ""},
		{"http://c:4318/base/", map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://other"}, "http://c:4318/base/v1/traces", ""},
		{"", map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}, "http://c:4318/v1/traces", ""},
		{"", map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "https://c/otlp"}, "https://c/otlp", ""},
		{"", map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c", "OTEL_SDK_DISABLED": "true"}, "", ""},
		{"", map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c", "OTEL_TRACES_EXPORTER": "none"}, "", ""},
		{"", map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4317", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "", "http/json"},
		{"", map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://u:" + secret + "@c"}, "", "OTEL_EXPORTER_OTLP_HEADERS"},
		{"", map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c", "OTEL_EXPORTER_OTLP_HEADERS": secret}, "", "name=value"},
		{"", map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c", "OTEL_EXPORTER_OTLP_HEADERS": "a=" + secret + "%0d%0aX: y"}, "", "HTTP does not allow"},
	} {
		r := recordFlags{sample: 1, otlp: c.flag}
		cfg, err := r.config(func(name string) string { return c.env[name] }, "n", slog.New(slog.DiscardHandler))
		if c.fail != "" {
			if err == nil || !strings.Contains(err.Error(), c.fail) || strings.Contains(err.Error(), secret) {
				t.Errorf("%v: %v", c.env, err)
			}
			continue
		}
		if err != nil || cfg.TracesURL != c.url {
			t.Errorf("%s %v: %q %v", c.flag, c.env, cfg.TracesURL, err)
		}
	}
	r := recordFlags{sample: 1, otlp: "http://c"}
	cfg, err := r.config(func(name string) string {
		return map[string]string{"OTEL_EXPORTER_OTLP_HEADERS": "authorization=Bearer%20x, x-a=1", "OTEL_RESOURCE_ATTRIBUTES": "service.name=edge,k=v%2C1"}[name]
	}, "n1", slog.New(slog.DiscardHandler))
	if err != nil || cfg.TracesHeader.Get("Authorization") != "Bearer x" || cfg.TracesHeader.Get("X-A") != "1" ||
		fmt.Sprint(cfg.Resource) != fmt.Sprintf("[{service.name edge} {k v,1} {service.version %s} {service.instance.id n1}]", version) {
		t.Fatalf("%+v %v", cfg, err)
	}
	for _, sample := range []float64{0, -1, 2} {
		r := recordFlags{sample: sample}
		if _, err := r.config(os.Getenv, "n", nil); err == nil {
			t.Errorf("%v is taken", sample)
		}
	}
}

// A server writes its access log, follows a rotation, and flushes at its end.
func TestServerWritesAnAccessLog(t *testing.T) {
	dir := shortDir(t)
	path := filepath.Join(dir, "access.log")
	log := slog.New(slog.DiscardHandler)
	s, err := startServer(serverOptions{DataDir: dir, Node: "server", Listen: "127.0.0.1:0", Log: log,
		Records: sink.Config{LogFile: path}, CORSOrigins: []string{"https://app.example"}})
	if err != nil {
		t.Fatal(err)
	}
	ask := func(id string) {
		req, _ := http.NewRequest("POST", "http://"+s.opts.Listen+"/v1/chat/completions", strings.NewReader(`{"model":"none"}`))
		req.Header.Set("X-Request-Id", id)
		req.Header.Set("Origin", "https://app.example")
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != 404 || res.Header.Get("Access-Control-Allow-Origin") != "https://app.example" {
			t.Fatalf("%d %v", res.StatusCode, res.Header)
		}
	}
	has := func(file, id string) func() error {
		return func() error {
			text, err := os.ReadFile(file)
			if err == nil && !bytes.Contains(text, []byte(id)) {
				err = fmt.Errorf("%s is not in %q", id, text)
			}
			return err
		}
	}
	ask("first")
	until(t, "the first line", has(path, "first"))
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	syscall.Kill(os.Getpid(), syscall.SIGHUP)
	until(t, "the new file", func() error { _, err := os.Stat(path); return err })
	ask("second")
	s.close()
	text, err := os.ReadFile(path)
	var line struct{ RequestID, Outcome string }
	if err != nil || json.Unmarshal(text, &line) != nil || line.RequestID != "second" || line.Outcome != "unknown_model" {
		t.Fatalf("%v: %s", err, text)
	}
}
