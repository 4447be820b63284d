package main

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/spf13/cobra"

	"sluice/gateway/admin"
)

func newModelCmd() *cobra.Command {
	return group("model", "Serve models", "  sluice model apply -f examples/model.yaml\n  sluice model list",
		applyCmd(kindModel, "Set models from a file", "  sluice model apply -f examples/model.yaml",
			"Sets every model in the file; docs/model-yaml.md describes it field by field. A\nchange that the engine sees makes a new version, which is rolled out one replica\nafter the other."),
		newModelListCmd(), newModelDescribeCmd(), newModelDeleteCmd())
}

func newModelListCmd() *cobra.Command {
	c := &cobra.Command{Use: "list", Aliases: []string{"ls"}, Short: "List models with headroom and replicas", Example: "  sluice model list\n  sluice model list -o json", Args: argCount(0, "")}
	conn, out := addClientFlags(c), outputFlag(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		var models []admin.ModelStatus
		if err := fetch(c, conn, out, apiPath("models"), &models); err != nil {
			return err
		}
		return out.print(c, models, func(t *table) {
			t.row("MODEL", "TENANT", "VERSION", "READY", "COMING", "ASLEEP", "NEED", "RATE/S", "HEADROOM/S", "OBJECTIVES")
			for _, m := range models {
				need, rate, room := "-", "-", "-"
				if h := m.Headroom; h != nil {
					need, rate, room = fmt.Sprint(h.NeedReplicas), fmt.Sprintf("%.1f", h.ArrivalRps), fmt.Sprintf("%.1f", h.HeadroomRps)
					if h.CapacityRps == 0 && (m.Ready > 0 || m.External) {
						room = "" // not learned yet
					}
				}
				ready := fmt.Sprint(m.Ready)
				if m.External {
					ready = "url"
				}
				t.row(m.Name, m.Spec.Tenant, fmt.Sprintf("v%d", m.Version), ready, m.Coming, m.Asleep, need, rate, room, objectivesText(&m))
			}
		})
	}
	return c
}

// objectivesText is "p90 ttft 310ms/2.0s ok". A missed one tells its share: requests that failed have no latency, so what
// was observed may be well below the threshold.
func objectivesText(m *admin.ModelStatus) string {
	if m.Headroom == nil {
		return ""
	}
	var parts []string
	for _, a := range m.Headroom.Objectives {
		met := "ok"
		switch {
		case !a.Met:
			met = fmt.Sprintf("missed (held for %.1f%%)", a.Fraction*100)
		case a.ObservedMs == 0:
			met = "unseen"
		}
		parts = append(parts, fmt.Sprintf("p%g %s %s/%s %s", a.Objective.Quantile*100, a.Objective.Metric, observed(a.ObservedMs), ago(int64(a.Objective.ThresholdMs)), met))
	}
	return strings.Join(parts, ", ")
}

// observed shows a latency; 0 is none seen.
func observed(ms float64) string {
	if ms == 0 {
		return "-"
	}
	return ago(int64(ms))
}

func newModelDescribeCmd() *cobra.Command {
	c := &cobra.Command{Use: "describe NAME", Aliases: []string{"get"}, Short: "Show one model, its spec and its replicas", Example: "  sluice model describe chat\n  sluice model describe chat -o yaml", Args: argCount(1, "a model's name")}
	conn, out := addClientFlags(c), outputFlag(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		var m admin.ModelStatus
		if err := fetch(c, conn, out, apiPath("models", args[0]), &m); err != nil {
			return err
		}
		return out.print(c, m, func(t *table) { describeModel(t, &m) })
	}
	return c
}

func describeModel(t *table, m *admin.ModelStatus) {
	s := &m.Spec
	t.row("name:", m.Name)
	t.row("tenant:", s.Tenant)
	t.row("version:", fmt.Sprintf("v%d", m.Version))
	if len(s.Aliases) > 0 {
		t.row("aliases:", list(s.Aliases))
	}
	if len(s.Adapters) > 0 {
		t.row("adapters:", list(s.Adapters))
	}
	if len(s.Speaks) > 0 {
		t.row("speaks:", list(s.Speaks))
	}
	if s.URL != "" {
		t.row("url:", s.URL)
	} else {
		t.row("command:", strings.Join(s.Command, " "))
		limit := "no cap"
		if s.MaxReplicas > 0 {
			limit = fmt.Sprint(s.MaxReplicas)
		}
		t.row("replicas:", fmt.Sprintf("%d ready, %d coming, %d asleep; %d to %s of %d GPUs each", m.Ready, m.Coming, m.Asleep, s.MinReplicas, limit, s.GPUsPerReplica))
		if s.ActiveBytes > 0 {
			t.row("memory:", fmt.Sprintf("%s active, %s resident", bytesText(s.ActiveBytes), bytesText(s.ResidentBytes)))
		}
	}
	if h := m.Headroom; h != nil {
		t.row("traffic:", fmt.Sprintf("%.2f requests/s, demand %.2f, capacity %.2f, headroom %.2f, %d queued", h.ArrivalRps, h.DemandRps, h.CapacityRps, h.HeadroomRps, h.QueueDepth))
		t.row("needs:", fmt.Sprintf("%d replicas within %s, %d now: %s", h.NeedReplicas, ago(h.HorizonMs), h.NeedNow, h.Reason))
		t.row("objectives:", objectivesText(m))
	}
	if m.Failures > 0 {
		t.row("failures:", fmt.Sprintf("%d in a row, next start in %s", m.Failures, ago(m.RetryMs)))
	}
	if m.Waiting != nil {
		t.row("waits for:", m.Waiting.Cause+": "+m.Waiting.Text)
	}
	for _, r := range m.Replicas {
		t.row("replica:", fmt.Sprintf("%s v%d %s for %s on %s %s %s", r.ID, r.Version, r.Phase, ago(r.ForMs), r.Node, list(r.GPUs), r.Reason))
	}
}

func newModelDeleteCmd() *cobra.Command {
	return deleteCmd("delete NAME", "Stop serving a model and forget it", "  sluice model delete chat", "models", "a model's name")
}

// deleteCmd makes a verb that deletes one object.
func deleteCmd(use, short, example, collection, what string) *cobra.Command {
	return changeCmd(use, short, example, what, func(name string) (string, string) { return http.MethodDelete, apiPath(collection, name) })
}

// changeCmd makes a verb that changes one named object and has no body.
func changeCmd(use, short, example, what string, request func(name string) (method, path string)) *cobra.Command {
	c := &cobra.Command{Use: use, Short: short, Example: example, Args: argCount(1, what)}
	conn, out := addClientFlags(c), outputFlag(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		if err := out.check(c); err != nil {
			return err
		}
		cl, err := conn.open()
		if err != nil {
			return err
		}
		var changed admin.Changed
		method, path := request(args[0])
		if err := cl.call(c.Context(), method, path, nil, &changed); err != nil {
			return err
		}
		return printChanged(c, out, changed)
	}
	return c
}

// fetch gets one document for printing.
func fetch(c *cobra.Command, conn *clientFlags, out *output, path string, v any) error {
	if err := out.check(c); err != nil {
		return err
	}
	cl, err := conn.open()
	if err != nil {
		return err
	}
	return cl.call(c.Context(), http.MethodGet, path, nil, v)
}
