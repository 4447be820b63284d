// Package ref holds bare relays that a gateway is compared with: each is the least that its way of doing it costs, and
// none could be used as one.
//
//	err := ref.Serve("raw", listener, "127.0.0.1:9000") // never returns but with an error
//
// The kinds are those of Kinds. Each sends everything to one engine (fasthttp and net/http take turns among several) and
// knows nothing of keys, limits, retries or accounts. The caller ends them by ending the process.
package ref
