package admin

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	"sluice/nodes"
	"sluice/nodes/registry"
	"sluice/nodes/trust"
	"sluice/slo"
)

// Limits of what a tenant may have.
const (
	maxKeys   = 10_000 // in all; one more is a conflict
	maxTokens = 1000
)

// TenantStatus is a tenant with what it holds now.
type TenantStatus struct {
	registry.TenantSpec
	Models   int `json:"models"`
	Jobs     int `json:"jobs"` // not ended
	TrainGPU int `json:"trainGpus"`
	ServeGPU int `json:"serveGpus"`
}

func (s *Server) tenants() []TenantStatus {
	var out []TenantStatus
	s.read(func(v *snapshot) {
		at := map[string]*TenantStatus{}
		for name, t := range v.s.Tenants {
			at[name] = &TenantStatus{TenantSpec: *t}
		}
		count := func(tenant string, f func(*TenantStatus)) {
			if t := at[tenant]; t != nil {
				f(t)
			}
		}
		for _, m := range v.s.Models {
			count(m.Spec.Tenant, func(t *TenantStatus) { t.Models++ })
		}
		for _, j := range v.s.Jobs {
			if !j.Phase.Ended() {
				count(j.Spec.Tenant, func(t *TenantStatus) { t.Jobs++ })
			}
		}
		for _, g := range v.s.GPUs {
			switch name, kind := v.owner(g.Active); kind {
			case "model":
				if m := v.s.Models[name]; m != nil {
					count(m.Spec.Tenant, func(t *TenantStatus) { t.ServeGPU++ })
				}
			case "job":
				count(v.s.Jobs[name].Spec.Tenant, func(t *TenantStatus) { t.TrainGPU++ })
			}
		}
		for _, name := range slices.Sorted(maps.Keys(at)) {
			out = append(out, *at[name])
		}
	})
	return nonNil(out)
}

func (s *Server) listTenants(w http.ResponseWriter, _ *http.Request, _ Actor) error {
	writeJSON(w, http.StatusOK, s.tenants())
	return nil
}

func (s *Server) getTenant(w http.ResponseWriter, r *http.Request, _ Actor) error {
	for _, t := range s.tenants() {
		if t.Name == r.PathValue("name") {
			writeJSON(w, http.StatusOK, t)
			return nil
		}
	}
	return notFound("tenant", r.PathValue("name"))
}

func (s *Server) putTenant(w http.ResponseWriter, r *http.Request, who Actor) error {
	var spec registry.TenantSpec
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
	return s.apply(w, r, who, "tenant.apply", "tenant/"+spec.Name, registry.Command{PutTenant: &spec})
}

func (s *Server) deleteTenant(w http.ResponseWriter, r *http.Request, who Actor) error {
	name := r.PathValue("name")
	if err := s.exists("tenant", name, func(st *registry.State) bool { return st.Tenants[name] != nil }); err != nil {
		return err
	}
	if name == registry.DefaultTenant {
		return &Error{Status: http.StatusConflict, Code: "conflict", Message: "the tenant default always exists", Remedy: "change it with `sluice tenant apply`"}
	}
	return s.apply(w, r, who, "tenant.delete", "tenant/"+name, registry.Command{DeleteTenant: &registry.ByName{Name: name}})
}

// KeyRequest asks for an API key.
type KeyRequest struct {
	Tenant       string   `json:"tenant"`
	Models       []string `json:"models,omitempty"`       // empty: all
	ClassCeiling string   `json:"classCeiling,omitempty"` // the most urgent class allowed; "" means interactive
	registry.Limits
}

// Key is an API key without its secret and hash.
type Key struct {
	ID           string    `json:"id"`
	Tenant       string    `json:"tenant"`
	Models       []string  `json:"models,omitempty"`
	ClassCeiling slo.Class `json:"classCeiling"`
	registry.Limits
}

// NewKey is a key and its secret, sent once.
type NewKey struct {
	Key
	Secret string `json:"secret"`
}

func keyOf(k *registry.KeySpec) Key {
	return Key{ID: k.ID, Tenant: k.Tenant, Models: slices.Clone(k.Models), ClassCeiling: k.ClassCeiling, Limits: k.Limits}
}

func (s *Server) listKeys(w http.ResponseWriter, _ *http.Request, _ Actor) error {
	out := []Key{}
	s.ctl.Read(func(st *registry.State, _ *nodes.Fleet, _ int64) {
		for _, id := range slices.Sorted(maps.Keys(st.Keys)) {
			out = append(out, keyOf(st.Keys[id]))
		}
	})
	writeJSON(w, http.StatusOK, out)
	return nil
}

func (s *Server) createKey(w http.ResponseWriter, r *http.Request, who Actor) error {
	var req KeyRequest
	if err := decode(r, &req); err != nil {
		return err
	}
	if req.Tenant == "" {
		req.Tenant = registry.DefaultTenant
	}
	class := slo.Interactive
	if req.ClassCeiling != "" {
		var err error
		if class, err = slo.ParseClass(req.ClassCeiling); err != nil {
			return invalid([]registry.FieldError{{Field: "classCeiling", Problem: "is no class", Remedy: "write interactive, standard or batch"}})
		}
	}
	if err := invalid(req.Limits.Validate()); err != nil {
		return err
	}
	if err := s.keyFits(&req); err != nil {
		return err
	}
	secret, hash := trust.NewKey()
	spec := registry.KeySpec{ID: "key-" + randomID()[:8], Tenant: req.Tenant, HashHex: hash, Models: req.Models, ClassCeiling: class, Limits: req.Limits}
	if _, err := s.change(r, who, "key.create", "key/"+spec.ID, registry.Command{PutKey: &spec}); err != nil {
		return err
	}
	writeJSON(w, http.StatusCreated, NewKey{Key: keyOf(&spec), Secret: secret})
	return nil
}

func (s *Server) keyFits(req *KeyRequest) (err error) {
	s.ctl.Read(func(st *registry.State, _ *nodes.Fleet, _ int64) {
		if err = tenantExists(st, req.Tenant); err != nil {
			return
		}
		if len(st.Keys) >= maxKeys {
			err = &Error{Status: http.StatusConflict, Code: "limit", Message: fmt.Sprintf("there are %d keys already", maxKeys), Remedy: "delete unused ones with `sluice key delete`"}
			return
		}
		for i, m := range req.Models {
			if st.Models[m] == nil {
				err = invalid([]registry.FieldError{{Field: fmt.Sprintf("models[%d]", i), Problem: fmt.Sprintf("there is no model %q", clip(m)),
					Remedy: "apply the model first, or leave models out to allow all"}})
				return
			}
		}
	})
	return err
}

func (s *Server) deleteKey(w http.ResponseWriter, r *http.Request, who Actor) error {
	name := r.PathValue("name")
	if strings.HasPrefix(name, "sk-") {
		return badRequest("this is a key's secret, not its id", "use the id, key-…, from `sluice key list`; since the secret was sent as a name, consider it known to others")
	}
	if err := s.exists("key", name, func(st *registry.State) bool { return st.Keys[name] != nil }); err != nil {
		return err
	}
	return s.apply(w, r, who, "key.delete", "key/"+name, registry.Command{DeleteKey: &registry.ByName{Name: name}})
}

// limitKey and limitTenant set all limits of one that exists; what is left out is no limit.
func (s *Server) limitKey(w http.ResponseWriter, r *http.Request, who Actor) error {
	return s.setLimits(w, r, who, "key", &registry.SetLimits{Key: r.PathValue("name")})
}

func (s *Server) limitTenant(w http.ResponseWriter, r *http.Request, who Actor) error {
	return s.setLimits(w, r, who, "tenant", &registry.SetLimits{Tenant: r.PathValue("name")})
}

func (s *Server) setLimits(w http.ResponseWriter, r *http.Request, who Actor, kind string, c *registry.SetLimits) error {
	if err := decode(r, &c.Limits); err != nil {
		return err
	}
	if err := invalid(c.Limits.Validate()); err != nil {
		return err
	}
	name := r.PathValue("name")
	if err := s.exists(kind, name, func(st *registry.State) bool { return st.Keys[c.Key] != nil || st.Tenants[c.Tenant] != nil }); err != nil {
		return err
	}
	return s.apply(w, r, who, kind+".limit", kind+"/"+name, registry.Command{SetLimits: c})
}

// TokenRequest asks for a join token (role agent) or an operator's token.
type TokenRequest struct {
	Role Role `json:"role"`
}

// TokenStatus is a token without its secret and hash.
type TokenStatus struct {
	ID   string `json:"id"`
	Role Role   `json:"role"`
}

// NewToken is a token's text, sent once.
type NewToken struct {
	TokenStatus
	Token string `json:"token"`
}

func (s *Server) listTokens(w http.ResponseWriter, _ *http.Request, _ Actor) error {
	out := []TokenStatus{}
	s.ctl.Read(func(st *registry.State, _ *nodes.Fleet, _ int64) {
		for _, id := range slices.Sorted(maps.Keys(st.Tokens)) {
			out = append(out, TokenStatus{ID: id, Role: Role(st.Tokens[id].Role)})
		}
	})
	writeJSON(w, http.StatusOK, out)
	return nil
}

func (s *Server) createToken(w http.ResponseWriter, r *http.Request, who Actor) error {
	var req TokenRequest
	if err := decode(r, &req); err != nil {
		return err
	}
	if req.Role == "" {
		req.Role = RoleAgent
	}
	if req.Role != RoleAgent && req.Role != RoleOperator {
		return invalid([]registry.FieldError{{Field: "role", Problem: "is no role", Remedy: "write agent or operator"}})
	}
	var full bool
	s.ctl.Read(func(st *registry.State, _ *nodes.Fleet, _ int64) { full = len(st.Tokens) >= maxTokens })
	if full {
		return &Error{Status: http.StatusConflict, Code: "limit", Message: fmt.Sprintf("there are %d tokens already", maxTokens), Remedy: "delete unused ones with `sluice token delete`"}
	}
	ca, err := s.authority()
	if err != nil {
		return err
	}
	token, record, err := newToken(ca)
	if err != nil {
		return err
	}
	spec := registry.TokenSpec{ID: record.ID, Role: string(req.Role), HashHex: record.HashHex}
	if _, err := s.change(r, who, "token.create", "token/"+spec.ID, registry.Command{PutToken: &spec}); err != nil {
		return err
	}
	writeJSON(w, http.StatusCreated, NewToken{TokenStatus: TokenStatus{ID: spec.ID, Role: req.Role}, Token: token.Reveal()})
	return nil
}

// maxDraws of a token's id until one looks like no flag on a command line.
const maxDraws = 100

func newToken(ca [32]byte) (trust.Token, trust.TokenRecord, error) {
	for range maxDraws {
		token, record, err := trust.CreateToken(ca, "", 0, 0)
		if err != nil || record.ID[0] != '-' {
			return token, record, err
		}
	}
	return trust.Token{}, trust.TokenRecord{}, errors.New("no usable token id was drawn")
}

func (s *Server) authority() ([32]byte, error) {
	none := &Error{Status: http.StatusConflict, Code: "no_tls", Message: "this server has no TLS control port, so a token would open nothing",
		Remedy: "start it with a TCP control address"}
	if s.caHash == nil {
		return [32]byte{}, none
	}
	ca, err := s.caHash()
	if err != nil {
		s.log.Error("control port: no authority for tokens", "err", err)
		return ca, none
	}
	return ca, nil
}

func (s *Server) deleteToken(w http.ResponseWriter, r *http.Request, who Actor) error {
	name := r.PathValue("name")
	if strings.HasPrefix(name, "sluice-join.") {
		return badRequest("this is a token's text, not its id", "use the id, its second part, from `sluice token list`")
	}
	if err := s.exists("token", name, func(st *registry.State) bool { return st.Tokens[name] != nil }); err != nil {
		return err
	}
	return s.apply(w, r, who, "token.delete", "token/"+name, registry.Command{DeleteToken: &registry.ByName{Name: name}})
}
