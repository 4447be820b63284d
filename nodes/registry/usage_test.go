package registry

import (
	"errors"
	"fmt"
	"testing"
	"time"
)

func used(t *testing.T, s *State, id, day string, rows ...UsageRow) {
	t.Helper()
	at, err := time.Parse(time.DateOnly, day)
	if err != nil {
		t.Fatal(err)
	}
	for i := range rows {
		rows[i].Period = day
	}
	ev, err := s.Apply(&Command{ID: id, AtMs: at.UnixMilli(), AddUsage: &AddUsage{Rows: rows}})
	if err != nil || len(ev) != 0 {
		t.Fatal(ev, err)
	}
}

func rowOf(tenant, key, model string, input, output int64) UsageRow {
	return UsageRow{Tenant: tenant, Key: key, Model: model, UsageCount: UsageCount{Requests: 1, InputTokens: input, OutputTokens: output}}
}

func TestUsageIsBookedOnce(t *testing.T) {
	s := New()
	for range 3 {
		used(t, s, "c1", "2026-11-30", rowOf("web", "k1", "chat", 7, 3), rowOf("web", "k2", "chat", 1, 1), rowOf("lab", "k3", "code", 5, 0))
	}
	used(t, s, "c2", "2026-11-30", rowOf("web", "k1", "chat", 10, 20))
	used(t, s, "c3", "2026-12-01", rowOf("web", "k1", "chat", 100, 200))
	data, err := s.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	if s, err = Restore(data); err != nil {
		t.Fatal(err)
	}
	rows := s.Usage.Days["2026-11-30"].Rows("2026-11-30", "")
	if len(rows) != 3 || rows[0].Tenant != "lab" || rows[1].Requests != 2 || rows[1].InputTokens != 17 || rows[1].OutputTokens != 23 {
		t.Fatalf("%+v", rows)
	}
	keys, tenants := s.Usage.Months["2026-11"].Tokens()
	if keys["k1"] != 40 || tenants["web"] != 42 || tenants["lab"] != 5 {
		t.Fatalf("%v %v", keys, tenants)
	}
	if keys, _ := s.Usage.Months["2026-12"].Tokens(); keys["k1"] != 300 || len(s.Usage.Days["2026-12-01"].Rows("2026-12-01", "lab")) != 0 {
		t.Fatalf("%v", keys)
	}
}

func TestUsageIsDroppedWithTime(t *testing.T) {
	s := New()
	day := time.Date(2026, 1, 31, 0, 0, 0, 0, time.UTC)
	for i := range 500 {
		d := day.AddDate(0, 0, i).Format(time.DateOnly)
		used(t, s, fmt.Sprint(i), d, rowOf("web", "k", "chat", 1, 0))
		if len(s.Usage.Days) > UsageDays || len(s.Usage.Months) > UsageMonths || len(s.Usage.Counts) != len(s.Usage.Days)+len(s.Usage.Months) {
			t.Fatalf("%s: %d days, %d months, %d counts", d, len(s.Usage.Days), len(s.Usage.Months), len(s.Usage.Counts))
		}
	}
	if keys, _ := s.Usage.Months["2026-12"].Tokens(); keys["k"] != 31 || len(s.Usage.Months) != UsageMonths || len(s.Usage.Days) != UsageDays {
		t.Fatalf("%v", keys)
	}
}

func TestUsageIsBounded(t *testing.T) {
	s := New()
	n := 0
	for n < maxUsageRows+2000 {
		var rows []UsageRow
		for range MaxUsageBatch {
			rows = append(rows, rowOf("web", fmt.Sprint("k", n), "chat", 1, 0))
			n++
		}
		used(t, s, fmt.Sprint(n), "2026-11-30", rows...)
	}
	used(t, s, "again", "2026-11-30", rowOf("web", "k0", "chat", 1, 0), rowOf("web", fmt.Sprint("k", n-1), "chat", 1, 0))
	if rows := s.Usage.Days["2026-11-30"].Rows("", ""); len(rows) != maxUsageRows+1 {
		t.Fatalf("%d rows", len(rows))
	}
	keys, tenants := s.Usage.Months["2026-11"].Tokens()
	if keys["k0"] != 2 || tenants["web"] != int64(n)+2 || keys[UsageOther] != int64(n-maxUsageRows)+1 {
		t.Fatalf("%d %d %d", keys["k0"], tenants["web"], keys[UsageOther])
	}
}

func TestUsageRefusesNonsense(t *testing.T) {
	s := New()
	for _, rows := range [][]UsageRow{{{Tenant: "web"}}, {{Period: "2026-13-01"}}, {{Period: "2026-11-30", UsageCount: UsageCount{InputTokens: -1}}}, make([]UsageRow, MaxUsageBatch+1)} {
		if _, err := s.Apply(&Command{AddUsage: &AddUsage{Rows: rows}}); !errors.Is(err, ErrConflict) || s.Version != 0 {
			t.Errorf("%d rows: %v", len(rows), err)
		}
	}
}

func TestLimitsAreSetOfWhatExists(t *testing.T) {
	s := New()
	apply := func(c Command) error { _, err := s.Apply(&c); return err }
	if err := apply(Command{PutKey: &KeySpec{ID: "k", Tenant: "default", HashHex: "ab", Models: []string{"chat"}}}); err != nil {
		t.Fatal(err)
	}
	l := Limits{RequestsPerMin: 5, TokensPerDay: 9}
	if err := apply(Command{SetLimits: &SetLimits{Key: "k", Limits: l}}); err != nil || s.Keys["k"].Limits != l || s.Keys["k"].HashHex != "ab" {
		t.Fatal(err, s.Keys["k"])
	}
	if err := apply(Command{SetLimits: &SetLimits{Tenant: "default", Limits: l}}); err != nil || s.Tenants["default"].Limits != l || s.Tenants["default"].Weight != 1 {
		t.Fatal(err, s.Tenants["default"])
	}
	for _, c := range []SetLimits{{Key: "gone"}, {Tenant: "gone"}, {}} {
		if err := apply(Command{SetLimits: &c}); !errors.Is(err, ErrUnknown) {
			t.Error(err)
		}
	}
	for field, l := range map[string]Limits{"requestsPerMin": {RequestsPerMin: -1}, "tokensPerMin": {TokensPerMin: MaxPerMin + 1}, "concurrent": {Concurrent: -1},
		"tokensPerDay": {TokensPerDay: 10, TokensPerMonth: 5}, "tokensPerMonth": {TokensPerMonth: -1}} {
		if f := l.Validate(); len(f) == 0 || f[0].Field != field {
			t.Errorf("%s: %v", field, f)
		}
	}
}
