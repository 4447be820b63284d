package admin

import (
	"net/http"

	"sluice/nodes/registry"
)

func (s *Server) listNodes(w http.ResponseWriter, _ *http.Request, _ Actor) error {
	var out []NodeStatus
	s.read(func(v *snapshot) { out = v.nodes() })
	writeJSON(w, http.StatusOK, out)
	return nil
}

func (s *Server) getNode(w http.ResponseWriter, r *http.Request, _ Actor) error {
	name := r.PathValue("name")
	var found *NodeStatus
	s.read(func(v *snapshot) {
		for _, n := range v.nodes() {
			if n.ID == name {
				found = &n
			}
		}
	})
	if found == nil {
		return notFound("node", name)
	}
	writeJSON(w, http.StatusOK, found)
	return nil
}

func (s *Server) listGPUs(w http.ResponseWriter, _ *http.Request, _ Actor) error {
	var out []GPUStatus
	s.read(func(v *snapshot) { out = v.gpus() })
	writeJSON(w, http.StatusOK, out)
	return nil
}

// markNode cordons (nothing new), drains (and moves what is there) or frees a node.
func (s *Server) markNode(cordoned, draining bool) handler {
	action := "node.uncordon"
	switch {
	case draining:
		action = "node.drain"
	case cordoned:
		action = "node.cordon"
	}
	return func(w http.ResponseWriter, r *http.Request, who Actor) error {
		name := r.PathValue("name")
		if err := s.exists("node", name, func(st *registry.State) bool { return st.Nodes[name] != nil }); err != nil {
			return err
		}
		return s.apply(w, r, who, action, "node/"+name,
			registry.Command{NodeMark: &registry.NodeMark{Node: name, Cordoned: cordoned, Draining: draining}})
	}
}

func (s *Server) getStatus(w http.ResponseWriter, _ *http.Request, _ Actor) error {
	writeJSON(w, http.StatusOK, s.Status())
	return nil
}

func (s *Server) getBooks(w http.ResponseWriter, _ *http.Request, _ Actor) error {
	var out BooksStatus
	s.read(func(v *snapshot) { out = v.books() })
	writeJSON(w, http.StatusOK, out)
	return nil
}
