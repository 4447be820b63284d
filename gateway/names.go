package gateway

import (
	"slices"
	"strings"

	"github.com/valyala/fasthttp"

	"sluice/router"
	"sluice/slo"
)

// permit finds what the request's model stands for and checks that the key may use it and that its engines have the
// API. A key with a list learns nothing about other models.
func (k *call) permit() bool {
	table := k.srv.deps.Router.Table()
	k.srv.books.prune(table)
	target, known := table.Resolve(k.head.Model)
	if !k.mayAsk(k.head.Model, target) {
		k.refuse(fasthttp.StatusForbidden, slo.RefusedAuth, "model_not_allowed", "This key may not use the model; GET /v1/models lists those that it may.", 0)
		return false
	}
	if !known {
		k.unknownModel(target.Model)
		return false
	}
	k.target, k.model, k.books = target, target.Model, k.srv.books.of(target.Model.Name)
	k.ask.Model, k.ask.Version = target.Model.Name, target.Version
	if api := k.endpoint.speaks; api != "" && !target.Model.Has(api) {
		k.refuse(fasthttp.StatusNotFound, slo.BadRequest, "api_not_supported",
			"The engines of this model do not have this API. If they do, write it in the model's spec, under speaks.", 0)
		return false
	}
	return true
}

// mayAsk reports that the key has no list of models, or one that names what was asked for: the model, the alias that
// was used for it, the adapter, or the full name.
func (k *call) mayAsk(asked []byte, target router.Target) bool {
	m := target.Model
	if len(k.key.Models) == 0 {
		return true
	}
	for _, listed := range k.key.Models {
		if listed == string(asked) {
			return true
		}
		if m == nil {
			continue
		}
		base := len(asked) > len(listed) && asked[len(listed)] == ':' && string(asked[:len(listed)]) == listed
		if listed == m.Name || (base && slices.Contains(m.Aliases, listed)) ||
			target.Adapter != "" && (listed == target.Adapter || joined(listed, m.Name, target.Adapter)) ||
			target.Version != "" && joined(listed, m.Name, target.Version) {
			return true
		}
	}
	return false
}

// joined reports that full is base:rest, with or without a v before a version.
func joined(full, base, rest string) bool {
	tail, ok := strings.CutPrefix(full, base)
	if !ok || tail == "" || tail[0] != ':' {
		return false
	}
	return tail[1:] == rest || tail[1:] == "v"+rest
}

// maxNamesTold bounds the names in an error.
const maxNamesTold = 16

// unknownModel answers 404. With a model that is known, what stood behind its name is not.
func (k *call) unknownModel(m *router.Model) {
	k.outcome = slo.UnknownModel
	text := "There is no model of this name; GET /v1/models lists them."
	if m != nil {
		text = "The model " + m.Name + " has no such version or adapter. Versions: " + toldNames(m.KnownVersions()) +
			"; adapters: " + toldNames(m.Adapters) + "."
	}
	k.refuseParam(fasthttp.StatusNotFound, "model_not_found", text, "model", 0)
}

func toldNames(names []string) string {
	switch {
	case len(names) == 0:
		return "none"
	case len(names) > maxNamesTold:
		return strings.Join(names[:maxNamesTold], ", ") + " and more"
	}
	return strings.Join(names, ", ")
}

// upstreamModel is the name under which the engine knows what was asked for.
func (k *call) upstreamModel(r *router.Replica) string {
	if k.target.Adapter != "" {
		return k.target.Adapter
	}
	return r.UpstreamModel
}
