package admin

import (
	"net/http"
	"time"

	"sluice/nodes"
	"sluice/nodes/registry"
)

// Usage is what tenants have used on one day and in one month of UTC. What was used in the last seconds is not in it yet.
type Usage struct {
	AtMs int64 `json:"atMs"`
	// Day and Month are the periods, as 2026-11-30 and 2026-11.
	Day   string `json:"day"`
	Month string `json:"month"`
	// Days and Months are the rows of each, by tenant, key and model.
	Days   []registry.UsageRow `json:"days"`
	Months []registry.UsageRow `json:"months"`
}

// getUsage answers with today and this month, or with those of ?day=.
func (s *Server) getUsage(w http.ResponseWriter, r *http.Request, _ Actor) error {
	q := r.URL.Query()
	day, tenant := q.Get("day"), q.Get("tenant")
	if _, err := time.Parse(time.DateOnly, day); day != "" && err != nil {
		return badRequest("day is no day", "write it as 2026-11-30")
	}
	var u Usage
	var known bool
	s.ctl.Read(func(st *registry.State, _ *nodes.Fleet, nowMs int64) {
		u.AtMs, u.Day = nowMs, day
		if u.Day == "" {
			u.Day = registry.UsageDay(nowMs)
		}
		u.Month = u.Day[:7]
		u.Days = st.Usage.Days[u.Day].Rows(u.Day, tenant)
		u.Months = st.Usage.Months[u.Month].Rows(u.Month, tenant)
		known = tenant == "" || st.Tenants[tenant] != nil || len(u.Months) > 0 // one that was deleted has used something
	})
	if !known {
		return notFound("tenant", tenant)
	}
	writeJSON(w, http.StatusOK, u)
	return nil
}
