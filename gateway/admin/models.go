package admin

import (
	"fmt"
	"net/http"
	"slices"

	"sluice/nodes"
	"sluice/nodes/registry"
)

func (s *Server) listModels(w http.ResponseWriter, _ *http.Request, _ Actor) error {
	var out []ModelStatus
	s.read(func(v *snapshot) { out = v.models() })
	writeJSON(w, http.StatusOK, hideAll(out))
	return nil
}

func (s *Server) getModel(w http.ResponseWriter, r *http.Request, _ Actor) error {
	name := r.PathValue("name")
	var found *ModelStatus
	s.read(func(v *snapshot) {
		for _, m := range v.models() {
			if m.Name == name {
				found = &m
			}
		}
	})
	if found == nil {
		return notFound("model", name)
	}
	found.Spec = hideModel(found.Spec)
	writeJSON(w, http.StatusOK, found)
	return nil
}

func (s *Server) putModel(w http.ResponseWriter, r *http.Request, who Actor) error {
	var spec registry.ModelSpec
	if err := decode(r, &spec); err != nil {
		return err
	}
	if err := sameName(r, &spec.Name); err != nil {
		return err
	}
	spec.Default()
	if err := invalid(spec.Validate()); err != nil {
		return err
	}
	if err := s.modelFits(&spec); err != nil {
		return err
	}
	return s.apply(w, r, who, "model.apply", "model/"+spec.Name, registry.Command{PutModel: &spec})
}

// modelFits checks what a spec alone does not show: its tenant, and that no
// other model answers to one of its names.
func (s *Server) modelFits(spec *registry.ModelSpec) (err error) {
	s.ctl.Read(func(st *registry.State, _ *nodes.Fleet, _ int64) {
		if err = tenantExists(st, spec.Tenant); err != nil {
			return
		}
		own := slices.Concat([]string{spec.Name}, spec.Aliases, spec.Adapters)
		for name, m := range st.Models {
			if name == spec.Name {
				continue
			}
			for i, n := range own {
				if n != name && !slices.Contains(m.Spec.Aliases, n) && !slices.Contains(m.Spec.Adapters, n) {
					continue
				}
				field := "name"
				if at := i - 1 - len(spec.Aliases); at >= 0 {
					field = fmt.Sprintf("adapters[%d]", at)
				} else if i > 0 {
					field = fmt.Sprintf("aliases[%d]", i-1)
				}
				err = invalid([]registry.FieldError{{Field: field, Problem: fmt.Sprintf("model %q answers to %q already", name, n),
					Remedy: "choose another name, or take it from that model first"}})
				return
			}
		}
	})
	return err
}

func tenantExists(st *registry.State, tenant string) error {
	if st.Tenants[tenant] != nil {
		return nil
	}
	return invalid([]registry.FieldError{{Field: "tenant", Problem: fmt.Sprintf("there is no tenant %q", clip(tenant)),
		Remedy: "make it first with `sluice tenant apply`, or leave the field out for the tenant default"}})
}

// sameName lets the path name the object; a name in the body must agree.
func sameName(r *http.Request, name *string) error {
	path := r.PathValue("name")
	if *name == "" {
		*name = path
	}
	if *name != path {
		return &Error{Status: http.StatusBadRequest, Code: "bad_request", Field: "name", Message: "differs from the name in the path",
			Remedy: "leave it out, or write the same"}
	}
	return nil
}

func (s *Server) deleteModel(w http.ResponseWriter, r *http.Request, who Actor) error {
	name := r.PathValue("name")
	if err := s.exists("model", name, func(st *registry.State) bool { return st.Models[name] != nil }); err != nil {
		return err
	}
	return s.apply(w, r, who, "model.delete", "model/"+name, registry.Command{DeleteModel: &registry.ByName{Name: name}})
}

// exists refuses an unknown object before anything is recorded.
func (s *Server) exists(kind, name string, has func(*registry.State) bool) (err error) {
	s.ctl.Read(func(st *registry.State, _ *nodes.Fleet, _ int64) {
		if !has(st) {
			err = notFound(kind, name)
		}
	})
	return err
}

func (s *Server) listReplicas(w http.ResponseWriter, _ *http.Request, _ Actor) error {
	var out []ReplicaStatus
	s.read(func(v *snapshot) { out = v.replicas() })
	writeJSON(w, http.StatusOK, out)
	return nil
}
