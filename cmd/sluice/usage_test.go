package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"sluice/gateway/quota"
	"sluice/nodes"
	"sluice/nodes/registry"
)

func usageRow(tenant, key string, output int64) registry.UsageRow {
	return registry.UsageRow{Period: registry.UsageDay(5000), Tenant: tenant, Key: key, Model: "chat",
		UsageCount: registry.UsageCount{Requests: 1, InputTokens: 2, OutputTokens: output}}
}

func TestVerbsOfLimitsAndUsage(t *testing.T) {
	f := withServer(t)
	says := func(got string, want ...string) {
		t.Helper()
		for _, w := range want {
			if !strings.Contains(got, w) {
				t.Errorf("%q lacks %q", got, w)
			}
		}
	}
	sluice(t, exitOK, "key", "create", "--rpm", "60", "--tpm", "1000", "--concurrent", "4", "--tokens-per-day", "5000", "--tokens-per-month", "90000", "--class", "standard")
	id := ""
	for id = range f.state.Keys {
	}
	want := registry.Limits{RequestsPerMin: 60, TokensPerMin: 1000, Concurrent: 4, TokensPerDay: 5000, TokensPerMonth: 90000}
	if got := f.state.Keys[id].Limits; got != want {
		t.Fatalf("%+v", got)
	}
	says(sluice(t, exitOK, "key", "list"), "60 requests/min, 1000 tokens/min, 4 at once, 5000 tokens/day, 90000 tokens/month")
	says(sluice(t, exitOK, "key", "limit", id, "--rpm", "120", "--concurrent", "0"), "key/"+id+": 120 requests/min, 1000 tokens/min, 5000")
	want.RequestsPerMin, want.Concurrent = 120, 0
	if got := f.state.Keys[id].Limits; got != want {
		t.Fatalf("%+v", got)
	}
	says(sluice(t, exitOK, "tenant", "limit", "default", "--tokens-per-month", "7", "-o", "json"), `"object": "tenant/default"`)
	says(sluice(t, exitOK, "tenant", "list"), "7 tokens/month")
	if l := f.state.Tenants["default"]; l.TokensPerMonth != 7 || l.Weight != 1 {
		t.Fatalf("%+v", l)
	}
	says(sluice(t, exitUsage, "key", "limit", id), "name at least one")
	says(sluice(t, exitRefused, "key", "limit", "key-none", "--rpm", "1"), "key-none")
	says(sluice(t, exitRefused, "tenant", "limit", "nobody", "--rpm", "1"), "nobody")
	says(sluice(t, exitRefused, "key", "create", "--rpm", "-1"), "requestsPerMin", "0 for no limit")

	says(sluice(t, exitOK, "usage"), "Nothing was used in 1970-01")
	if _, err := f.Submit(t.Context(), registry.Command{AddUsage: &registry.AddUsage{Rows: []registry.UsageRow{usageRow("default", id, 40), usageRow("web", "k2", 7)}}}); err != nil {
		t.Fatal(err)
	}
	says(sluice(t, exitOK, "usage"), "TENANT", id, "web", "40")
	if got := sluice(t, exitOK, "usage", "--tenant", "web", "-o", "csv"); got != "period,tenant,key,model,requests,inputTokens,outputTokens,estimatedTokens\n"+
		"1970-01-01,web,k2,chat,1,2,7,0\n1970-01,web,k2,chat,1,2,7,0\n" {
		t.Errorf("%q", got)
	}
	says(sluice(t, exitOK, "usage", "-o", "json"), `"month": "1970-01"`, `"outputTokens": 40`)
	says(sluice(t, exitOK, "usage", "--day", "1970-01-02"), "REQUESTS 1970-01-02")
	says(sluice(t, exitRefused, "usage", "--day", "yesterday"), "2026-11-30")
	says(sluice(t, exitRefused, "usage", "--tenant", "nobody"), "nobody")
	says(sluice(t, exitUsage, "usage", "-o", "xml"), "table, json, yaml or csv")
}

// TestUsageIsPostedOnce breaks the log in every way while usage is posted: each row becomes a fact once.
func TestUsageIsPostedOnce(t *testing.T) {
	f := &facts{state: registry.New()}
	var rows []registry.UsageRow
	var told *quota.Spent
	failure := errors.New("no quorum")
	var before, after error // of the next command: it is not applied, or it is and nobody hears of it
	p := &usagePoster{author: "a", log: slog.New(slog.DiscardHandler), read: f.Read, sync: func(s *quota.Spent) { told = s },
		take: func(to []registry.UsageRow) []registry.UsageRow { to = append(to, rows...); rows = nil; return to },
		submit: func(ctx context.Context, c registry.Command) ([]registry.Event, error) {
			if before != nil {
				return nil, before
			}
			if _, err := f.Submit(ctx, c); err != nil {
				return nil, err
			}
			return nil, after
		}}
	post := func(b, a error) { before, after = b, a; p.post(t.Context()) }
	rows = []registry.UsageRow{usageRow("web", "k", 8)}
	post(failure, nil)
	rows = []registry.UsageRow{usageRow("web", "k", 18)}
	post(nil, failure)
	post(nil, failure)
	if told != nil {
		t.Fatal("told while something is pending")
	}
	post(nil, nil) // the first 10, again
	post(nil, nil) // the 20
	for range 3 {
		post(nil, nil)
	}
	if u := told.Keys["k"]; u.DayTokens != 30 || u.MonthTokens != 30 || told.Tenants["web"].MonthTokens != 30 || told.AtMs != 5000 {
		t.Fatalf("%+v", told)
	}
	for i := range registry.MaxUsageBatch + 10 {
		rows = append(rows, usageRow("lab", fmt.Sprint(i), 0))
	}
	post(nil, nil)
	if n := told.Tenants["lab"].DayTokens; n != 2*(registry.MaxUsageBatch+10) || len(p.pending) != 0 {
		t.Fatal(n)
	}
}

// TestBudgetSurvivesARestart spends a budget, restarts the server, and finds it spent. The limit is raised then, without
// another restart.
func TestBudgetSurvivesARestart(t *testing.T) {
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, `{"choices":[],"usage":{"prompt_tokens":60,"completion_tokens":40}}`)
	}))
	defer engine.Close()
	dir := shortDir(t)
	start := func() *server {
		t.Helper()
		s, err := startServer(serverOptions{DataDir: dir, Node: "server", Listen: "127.0.0.1:0", Strict: true, Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	submit := func(s *server, c registry.Command) {
		t.Helper()
		until(t, "change the facts", func() error { _, err := s.ctl.Submit(t.Context(), c); return err })
	}
	expect := func(s *server, want string) {
		t.Helper()
		until(t, "be answered "+want, func() error {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+s.opts.Listen+"/v1/chat/completions",
				strings.NewReader(`{"model":"chat","max_tokens":60,"messages":[]}`))
			if err != nil {
				return err
			}
			req.Header.Set("Authorization", "Bearer sk-test")
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				return err
			}
			defer resp.Body.Close()
			if body, err := io.ReadAll(resp.Body); err != nil || !strings.Contains(string(body), want) {
				return fmt.Errorf("%s: %s %w", resp.Status, body, err)
			}
			return nil
		})
	}
	s := start()
	m := registry.ModelSpec{Name: "chat", URL: engine.URL}
	m.Default()
	sum := sha256.Sum256([]byte("sk-test"))
	submit(s, registry.Command{PutModel: &m})
	submit(s, registry.Command{PutKey: &registry.KeySpec{ID: "k", Tenant: "default", HashHex: hex.EncodeToString(sum[:]), Limits: registry.Limits{TokensPerMonth: 150}}})
	until(t, "know the key", func() error { // before that everybody on this machine is let in, on nobody's budget
		if s.keys.Empty() {
			return errors.New("the data port has no key yet")
		}
		return nil
	})
	expect(s, `"completion_tokens":40`)
	expect(s, "tokens_per_month")
	s.close()
	s = start()
	defer s.close()
	expect(s, "tokens_per_month")
	s.ctl.Read(func(st *registry.State, _ *nodes.Fleet, nowMs int64) {
		rows := st.Usage.Months[registry.UsageMonth(nowMs)].Rows("", "default")
		if len(rows) != 1 || rows[0].Key != "k" || rows[0].Requests != 1 || rows[0].Tokens() != 100 {
			t.Errorf("%+v", rows)
		}
	})
	submit(s, registry.Command{SetLimits: &registry.SetLimits{Key: "k", Limits: registry.Limits{TokensPerMonth: 1000}}})
	expect(s, `"completion_tokens":40`)
}
