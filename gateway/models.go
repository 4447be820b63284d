package gateway

import (
	"slices"
	"strconv"

	"github.com/valyala/fasthttp"

	"sluice/gateway/wire"
	"sluice/router"
)

// listModels answers GET /v1/models with the names that the key may ask for: models, their adapters, and of aliases
// those that the key's list names.
func (k *call) listModels(get bool) {
	if !get {
		k.notAllowed("GET")
		return
	}
	if !k.authenticate() {
		return
	}
	b := append(k.out[:0], `{"object":"list","data":[`...)
	empty := len(b)
	add := func(name, parent string) {
		if len(b) > empty {
			b = append(b, ',')
		}
		b = k.appendModel(b, name, parent)
	}
	models := k.srv.deps.Router.Table().Models()
	for i := range models {
		m := &models[i]
		if k.mayAsk([]byte(m.Name), router.Target{Model: m}) {
			add(m.Name, "")
		}
		for _, alias := range m.Aliases {
			if slices.Contains(k.key.Models, alias) {
				add(alias, "")
			}
		}
		for _, adapter := range m.Adapters {
			if k.mayAsk([]byte(adapter), router.Target{Model: m, Adapter: adapter}) {
				add(adapter, m.Name)
			}
		}
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
	target, ok := k.srv.deps.Router.Table().Resolve(name)
	if !k.mayAsk(name, target) {
		k.unknownModel(nil) // a key with a list learns nothing about other models
		return
	}
	if !ok {
		k.unknownModel(target.Model)
		return
	}
	parent := ""
	if target.Adapter != "" {
		parent = target.Model.Name
	}
	k.out = k.appendModel(k.out[:0], string(name), parent)
	k.answer(fasthttp.StatusOK, k.out)
}

// appendModel appends a model object. parent is the model of an adapter.
func (k *call) appendModel(b []byte, name, parent string) []byte {
	b = append(b, `{"id":`...)
	b = wire.AppendQuoted(b, name)
	b = append(b, `,"object":"model","created":`...)
	b = strconv.AppendInt(b, k.srv.startS, 10)
	b = append(b, `,"owned_by":"sluice"`...)
	if parent != "" {
		b = append(b, `,"parent":`...)
		b = wire.AppendQuoted(b, parent)
	}
	return append(b, '}')
}
