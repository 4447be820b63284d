package gateway

import (
	"slices"
	"strconv"

	"github.com/valyala/fasthttp"

	"sluice/gateway/wire"
	"sluice/router"
)

// listModels answers GET /v1/models with the models that the key may use.
func (k *call) listModels(get bool) {
	if !get {
		k.notAllowed("GET")
		return
	}
	if !k.authenticate() {
		return
	}
	b := append(k.out[:0], `{"object":"list","data":[`...)
	first := true
	models := k.srv.deps.Router.Table().Models()
	for i := range models {
		if !k.mayUse(&models[i]) {
			continue
		}
		if !first {
			b = append(b, ',')
		}
		first = false
		b = k.appendModel(b, models[i].Name)
	}
	k.out = append(b, "]}"...)
	k.answer(fasthttp.StatusOK, k.out)
}

// describeModel answers GET /v1/models/{id}. Names may hold slashes.
func (k *call) describeModel(get bool, escaped []byte) {
	if !get {
		k.notAllowed("GET")
		return
	}
	if !k.authenticate() {
		return
	}
	name := fasthttp.AppendUnquotedArg(nil, escaped)
	model, ok := k.srv.deps.Router.Table().Lookup(string(name))
	if !ok || !k.mayUse(model) {
		k.unknownModel()
		return
	}
	k.out = k.appendModel(k.out[:0], string(name))
	k.answer(fasthttp.StatusOK, k.out)
}

// mayUse reports that the key's list names the model or one of its aliases, or that it has no list.
func (k *call) mayUse(m *router.Model) bool {
	if len(k.key.Models) == 0 || slices.Contains(k.key.Models, m.Name) {
		return true
	}
	for _, alias := range m.Aliases {
		if slices.Contains(k.key.Models, alias) {
			return true
		}
	}
	return false
}

func (k *call) appendModel(b []byte, name string) []byte {
	b = append(b, `{"id":`...)
	b = wire.AppendQuoted(b, name)
	b = append(b, `,"object":"model","created":`...)
	b = strconv.AppendInt(b, k.srv.startS, 10)
	return append(b, `,"owned_by":"sluice"}`...)
}
