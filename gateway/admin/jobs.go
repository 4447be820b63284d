package admin

import (
	"net/http"
	"slices"

	"sluice/nodes"
	"sluice/nodes/registry"
)

func (s *Server) listJobs(w http.ResponseWriter, _ *http.Request, _ Actor) error {
	var out []JobStatus
	s.read(func(v *snapshot) { out = v.jobs(len(v.s.Jobs)) })
	writeJSON(w, http.StatusOK, hideJobs(out))
	return nil
}

func (s *Server) getJob(w http.ResponseWriter, r *http.Request, _ Actor) error {
	name := r.PathValue("name")
	var found *JobStatus
	s.read(func(v *snapshot) {
		if j := v.s.Jobs[name]; j != nil {
			st := v.job(j)
			st.Ledger, st.Manifests = slices.Clone(j.Ledger), slices.Clone(j.Manifests)
			found = &st
		}
	})
	if found == nil {
		return notFound("job", name)
	}
	found.Spec = hideJob(found.Spec)
	writeJSON(w, http.StatusOK, found)
	return nil
}

func (s *Server) submitJob(w http.ResponseWriter, r *http.Request, who Actor) error {
	var spec registry.JobSpec
	if err := decode(r, &spec); err != nil {
		return err
	}
	spec.Default()
	if err := invalid(spec.Validate()); err != nil {
		return err
	}
	var err error
	s.ctl.Read(func(st *registry.State, _ *nodes.Fleet, _ int64) { err = tenantExists(st, spec.Tenant) })
	if err != nil {
		return err
	}
	events, err := s.change(r, who, "job.submit", "job/"+spec.Name, registry.Command{SubmitJob: &spec})
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusCreated, Changed{Object: "job/" + spec.Name, Events: events})
	return nil
}

// wantJob records its owner's wish: "" to run, "paused", "cancelled".
func (s *Server) wantJob(want string) handler {
	action := map[string]string{"": "job.resume", "paused": "job.pause", "cancelled": "job.cancel"}[want]
	return func(w http.ResponseWriter, r *http.Request, who Actor) error {
		name := r.PathValue("name")
		var err error
		s.ctl.Read(func(st *registry.State, _ *nodes.Fleet, _ int64) {
			switch j := st.Jobs[name]; {
			case j == nil:
				err = notFound("job", name)
			case j.Phase.Ended():
				err = &Error{Status: http.StatusConflict, Code: "ended", Message: "the job has ended already: " + string(j.Phase), Remedy: "submit it again"}
			case j.Want == "cancelled" && want != j.Want:
				err = &Error{Status: http.StatusConflict, Code: "conflict", Message: "the job is being cancelled", Remedy: "submit it again when it has ended"}
			}
		})
		if err != nil {
			return err
		}
		return s.apply(w, r, who, action, "job/"+name, registry.Command{JobWant: &registry.JobWant{Job: name, Want: want}})
	}
}
