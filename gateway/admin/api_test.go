package admin

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"sluice/nodes/registry"
	"sluice/slo"
)

func TestModelLife(t *testing.T) {
	d := open(t, nil)
	spec := map[string]any{"command": []string{"engine", "{{port}}"}, "gpusPerReplica": 2, "aliases": []string{"Org/Chat"}}
	var changed Changed
	d.must(t, "PUT", "/v1/models/chat", spec, &changed)
	if changed.Object != "model/chat" || len(changed.Events) != 1 || changed.Events[0].Author == "" {
		t.Fatalf("changed %+v", changed)
	}
	var m ModelStatus
	d.must(t, "GET", "/v1/models/chat", nil, &m)
	if m.Spec.MaxInFlight != 64 || m.Spec.Tenant != "default" || m.Spec.EngineModel != "chat" || m.Spec.HealthPath != "/health" {
		t.Fatalf("defaults are not filled in: %+v", m.Spec)
	}
	d.refused(t, "PUT", "/v1/models/other", map[string]any{"command": []string{"e", "{{port}}"}, "aliases": []string{"x", "Org/Chat"}}, 400, "invalid_spec", "aliases[1]")
	d.refused(t, "PUT", "/v1/models/other", map[string]any{"url": "http://169.254.169.254/latest"}, 400, "invalid_spec", "url")
	d.refused(t, "PUT", "/v1/models/other", map[string]any{"tenant": "nobody", "url": "http://h:1"}, 400, "invalid_spec", "tenant")
	d.refused(t, "PUT", "/v1/models/other", map[string]any{"name": "chat"}, 400, "bad_request", "name")
	d.must(t, "DELETE", "/v1/models/chat", nil, nil)
	d.refused(t, "DELETE", "/v1/models/chat", nil, 404, "not_found", "")
	d.refused(t, "GET", "/v1/models/chat", nil, 404, "not_found", "")
	var all []ModelStatus
	d.must(t, "GET", "/v1/models", nil, &all)
	if len(all) != 0 {
		t.Fatalf("a deleted model is still listed: %+v", all)
	}
}

func TestBadBodies(t *testing.T) {
	d := open(t, nil)
	deep := `{"command":` + strings.Repeat("[", 500_000)
	for name, c := range map[string]struct {
		body   string
		status int
		code   string
		field  string
	}{
		"empty":        {"", 400, "bad_request", ""},
		"not json":     {"name: chat", 400, "bad_request", ""},
		"cut off":      {`{"name":"chat"`, 400, "bad_request", ""},
		"unknown":      {`{"comand":["x"]}`, 400, "bad_request", "comand"},
		"wrong type":   {`{"gpusPerReplica":"two"}`, 400, "bad_request", "gpusPerReplica"},
		"twice":        {`{"url":"http://a:1","URL":"http://169.254.169.254"}`, 400, "bad_request", "URL"},
		"twice deep":   {`{"url":"http://a:1","objectives":[{"metric":"ttft","metric":"itl","quantile":0.9,"thresholdMs":1}]}`, 400, "bad_request", "metric"},
		"trailing":     {`{"url":"http://a:1"} {}`, 400, "bad_request", ""},
		"metric":       {`{"url":"http://a:1","objectives":[{"metric":"tft"}]}`, 400, "bad_request", ""},
		"deep":         {deep, 400, "bad_request", ""},
		"deep closed":  {deep + strings.Repeat("]", 500_000) + "}", 400, "bad_request", ""},
		"too large":    {`{"url":"` + strings.Repeat("x", maxBodyBytes) + `"}`, 413, "too_large", ""},
		"line in name": {`{"name":"chat","url":"http://a:1","engineModel":"a\r\nX-User: admin"}`, 400, "invalid_spec", "engineModel"},
	} {
		t.Run(name, func(t *testing.T) {
			d.refused(t, "PUT", "/v1/models/chat", c.body, c.status, c.code, c.field)
		})
	}
	d.refused(t, "GET", "/v1/nothing", nil, 404, "not_found", "")
	d.refused(t, "PATCH", "/v1/models/chat", nil, 405, "method_not_allowed", "")
	if len(d.f.state.Models) != 0 {
		t.Fatal("a refused body changed the facts")
	}
}

func TestJobsAndNodes(t *testing.T) {
	d := open(t, nil)
	d.f.floor(t, "127.0.0.1:1")
	d.refused(t, "POST", "/v1/jobs", map[string]any{"name": "x", "command": []string{"t"}, "minWorld": 3, "maxWorld": 3, "worldMultiple": 2}, 400, "invalid_spec", "worldMultiple")
	d.must(t, "POST", "/v1/jobs", map[string]any{"name": "x", "command": []string{"t"}}, nil)
	if e := d.refused(t, "POST", "/v1/jobs", map[string]any{"name": "x", "command": []string{"t"}}, 409, "exists", ""); !strings.Contains(e.Message, "x") {
		t.Fatalf("%+v", e)
	}
	var j JobStatus
	d.must(t, "GET", "/v1/jobs/bert", nil, &j)
	if j.Step != 7 || j.Loss == nil || *j.Loss != 0.25 || j.World != 1 || j.GPUs[0] != "GPU-b" {
		t.Fatalf("progress is not shown: %+v", j)
	}
	d.must(t, "POST", "/v1/jobs/bert/pause", nil, nil)
	if d.f.state.Jobs["bert"].Want != "paused" {
		t.Fatal("not wanted paused")
	}
	d.f.state.Jobs["bert"].Want = "cancelled" // what is being cancelled is not paused or resumed in between
	d.refused(t, "POST", "/v1/jobs/bert/pause", nil, 409, "conflict", "")
	d.refused(t, "POST", "/v1/jobs/bert/resume", nil, 409, "conflict", "")
	d.must(t, "POST", "/v1/jobs/bert/cancel", nil, nil)
	d.f.state.Jobs["bert"].Want = "paused"
	d.must(t, "POST", "/v1/jobs/bert/resume", nil, nil)
	if d.f.state.Jobs["bert"].Want != "" {
		t.Fatal("not wanted to run")
	}
	d.must(t, "POST", "/v1/jobs/x/cancel", nil, nil)
	d.refused(t, "POST", "/v1/jobs/none/cancel", nil, 404, "not_found", "")

	d.must(t, "POST", "/v1/nodes/n1/drain", nil, nil)
	var n NodeStatus
	d.must(t, "GET", "/v1/nodes/n1", nil, &n)
	if n.State != "draining" || n.GPUs != 2 {
		t.Fatalf("%+v", n)
	}
	d.must(t, "POST", "/v1/nodes/n1/uncordon", nil, nil)
	d.must(t, "GET", "/v1/nodes/n1", nil, &n)
	if n.State != "ready" {
		t.Fatalf("%+v", n)
	}
	d.refused(t, "POST", "/v1/nodes/n9/cordon", nil, 404, "not_found", "")
}

func TestStatus(t *testing.T) {
	d := open(t, nil)
	d.f.floor(t, "127.0.0.1:1")
	for i := range 100 {
		d.f.record(registry.Event{Kind: "manifest", Object: "bert", Steps: int64(i)})
	}
	var s Status
	d.must(t, "GET", "/v1/status", nil, &s)
	if len(s.Models) != 1 || s.Models[0].Headroom == nil || s.Models[0].Waiting == nil || s.Models[0].Waiting.Cause != "shortage" {
		t.Fatalf("models %+v", s.Models)
	}
	if len(s.GPUs) != 2 || s.GPUs[1].Owner != "bert" || s.GPUs[1].OwnerKind != "job" || s.GPUs[1].UsedBytes == nil || s.GPUs[0].UsedBytes != nil || s.GPUs[1].UtilPercent != nil {
		t.Fatalf("gpus %+v", s.GPUs)
	}
	if len(s.Events) == 0 || len(s.Events) > statusEvents || s.Events[0].Kind == "manifest" {
		t.Fatalf("events %+v", s.Events)
	}
	sum := 0.0
	for _, v := range s.Books.GPUSeconds {
		sum += v
	}
	if len(s.Books.GPUSeconds) != len(registry.BookStates()) || sum != s.Books.CapacitySeconds {
		t.Fatalf("books %+v", s.Books)
	}
	for _, path := range []string{"/v1/gpus", "/v1/nodes", "/v1/replicas", "/v1/books", "/v1/tenants", "/v1/keys", "/v1/tokens", "/v1/jobs", "/v1/models"} {
		status, raw := d.do(t, "GET", path, nil)
		if status != 200 || strings.HasPrefix(raw, "null") || !json.Valid([]byte(raw)) {
			t.Errorf("%s: %d %s", path, status, raw)
		}
	}
}

func TestWhy(t *testing.T) {
	d := open(t, nil)
	d.f.floor(t, "127.0.0.1:1")
	for object, want := range map[string]string{
		"bert": "Step 7 is done", "job/bert": "Generation 1 has 1 of 1 to 1 ranks on n1", "chat": "waits for shortage: no free GPU",
		"n1": "Not reported: power", "GPU-b": "held by bert.g1.r0",
	} {
		var w Why
		d.must(t, "GET", "/v1/why/"+object, nil, &w)
		if !strings.Contains(strings.Join(w.Lines, "\n"), want) {
			t.Errorf("why %s: %q lacks %q", object, w.Lines, want)
		}
		if w.Kind == "job" && len(w.Events) == 0 {
			t.Errorf("why %s has no events", object)
		}
	}
	for step := range int64(30) { // of manifests in a row the newest is shown
		d.f.record(registry.Event{Kind: "manifest", Object: "bert", Steps: step, World: 1})
	}
	var w Why
	d.must(t, "GET", "/v1/why/bert", nil, &w)
	if n := len(w.Events); n < 2 || w.Events[n-1].Steps != 29 || w.Events[n-2].Kind == "manifest" {
		t.Errorf("%+v", w.Events)
	}
	d.f.headroom["chat"] = slo.Headroom{ReadyReplicas: 1, DemandRps: 1, Objectives: []slo.Attainment{{Objective: slo.Objective{Metric: slo.TTFT, Quantile: 0.9, ThresholdMs: 2000}, Met: true}}}
	d.must(t, "GET", "/v1/why/chat", nil, &w)
	if text := strings.Join(w.Lines, "\n"); !strings.Contains(text, "is not known yet") || !strings.Contains(text, "nothing was measured lately") {
		t.Errorf("nothing learned yet: %q", text)
	}
	missed := d.f.headroom["chat"]
	missed.Objectives = []slo.Attainment{{Objective: missed.Objectives[0].Objective, ObservedMs: 58, Fraction: 0.875}}
	d.f.headroom["chat"] = missed
	d.must(t, "GET", "/v1/why/chat", nil, &w)
	if text := strings.Join(w.Lines, "\n"); !strings.Contains(text, "not met: it held for 87.5 % of requests") || !strings.Contains(text, "58 ms") {
		t.Errorf("missed by failures alone: %q", text)
	}
	d.refused(t, "GET", "/v1/why/model/bert", nil, 404, "not_found", "")
}

func TestTenantsAndLimits(t *testing.T) {
	d := open(t, nil)
	d.f.floor(t, "127.0.0.1:1")
	d.must(t, "PUT", "/v1/tenants/web", map[string]any{"limitGpus": 4}, nil)
	d.refused(t, "PUT", "/v1/tenants/web", map[string]any{"limitGpus": 1, "guaranteeGpus": 2}, 400, "invalid_spec", "limitGpus")
	var all []TenantStatus
	d.must(t, "GET", "/v1/tenants", nil, &all)
	if len(all) != 2 || all[0].TrainGPU != 1 || all[0].Models != 1 || all[1].Weight != 1 {
		t.Fatalf("%+v", all)
	}
	d.refused(t, "DELETE", "/v1/tenants/default", nil, 409, "conflict", "")
	d.must(t, "DELETE", "/v1/tenants/web", nil, nil)
	d.refused(t, "POST", "/v1/keys", map[string]any{"tenant": "web"}, 400, "invalid_spec", "tenant")
	d.refused(t, "POST", "/v1/keys", map[string]any{"models": []string{"nope"}}, 400, "invalid_spec", "models[0]")
	d.refused(t, "POST", "/v1/keys", map[string]any{"classCeiling": "urgent"}, 400, "invalid_spec", "classCeiling")
	d.refused(t, "POST", "/v1/keys", map[string]any{"concurrent": -1}, 400, "invalid_spec", "concurrent")
	for i := range maxTokens {
		d.f.state.Tokens[fmt.Sprint(i)] = &registry.TokenSpec{ID: fmt.Sprint(i), Role: "agent"}
	}
	d.refused(t, "POST", "/v1/tokens", map[string]any{}, 409, "limit", "")
	d.refused(t, "POST", "/v1/tokens", map[string]any{"role": "root"}, 400, "invalid_spec", "role")
}

func TestErrorsOfTheController(t *testing.T) {
	d := open(t, nil)
	d.f.refuse = fmt.Errorf("apply: %w", errPlanted)
	body := map[string]any{"limitGpus": 4}
	e := d.refused(t, "PUT", "/v1/tenants/web", body, 500, "internal", "")
	if strings.Contains(fmt.Sprint(e), "planted") || !strings.Contains(d.log.String(), "planted") || !strings.Contains(d.log.String(), e.RequestID) {
		t.Fatalf("details belong to the log only: %+v; log %s", e, d.log.String())
	}
	d.f.refuse = fmt.Errorf("no quorum: %w", ErrUnavailable)
	d.refused(t, "PUT", "/v1/tenants/web", body, 503, "unavailable", "")
	d.f.refuse = fmt.Errorf("model x: %w", registry.ErrConflict)
	d.refused(t, "PUT", "/v1/tenants/web", body, 409, "conflict", "")
}

// A handler's panic is answered without its details and the server lives.
func TestCase_SEC_11_PanicTellsNothing(t *testing.T) {
	d := open(t, func(c *Config) {
		c.Extra = map[string]http.Handler{"GET /boom": http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(errPlanted) })}
	})
	_, raw := d.do(t, "GET", "/boom", nil)
	for _, bad := range []string{"planted", "goroutine", "/var/lib", "10.9.8.7"} {
		if strings.Contains(raw, bad) {
			t.Fatalf("the answer tells %q: %s", bad, raw)
		}
	}
	d.must(t, "GET", "/healthz", nil, nil)
}
