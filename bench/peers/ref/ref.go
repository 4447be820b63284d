package ref

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"sync/atomic"
	"time"

	"github.com/valyala/fasthttp"
)

// Kinds are what Serve knows: a TCP byte copier, an HTTP/1.1 relay on bare connections, fasthttp's server and client,
// net/http's ReverseProxy.
var Kinds = []string{"tcp", "raw", "fasthttp", "nethttp"}

// Serve relays what comes to ln to the engines.
func Serve(kind string, ln net.Listener, engines []string) error {
	switch kind {
	case "tcp":
		return accept(ln, engines[0], copyBytes)
	case "raw":
		return accept(ln, engines[0], relay)
	case "fasthttp":
		return serveFast(ln, engines)
	case "nethttp":
		return serveHTTP(ln, engines)
	}
	return fmt.Errorf("ref: there is no reference %q: choose among %v", kind, Kinds)
}

func accept(ln net.Listener, engine string, serve func(client, engine net.Conn)) error {
	for {
		c, err := ln.Accept()
		if err != nil {
			return fmt.Errorf("ref: accept: %w", err)
		}
		go func() {
			defer c.Close()
			e, err := net.Dial("tcp", engine)
			if err != nil {
				return // the client sees its connection end
			}
			defer e.Close()
			serve(c, e)
		}()
	}
}

// poolSize is how many connections to an engine are kept.
const poolSize = 1 << 16

func serveFast(ln net.Listener, engines []string) error {
	var pool []*fasthttp.HostClient
	for _, e := range engines {
		pool = append(pool, &fasthttp.HostClient{Addr: e, MaxConns: poolSize, StreamResponseBody: true, MaxIdleConnDuration: time.Hour,
			DisablePathNormalizing: true, NoDefaultUserAgentHeader: true})
	}
	var turn atomic.Uint32
	s := &fasthttp.Server{NoDefaultServerHeader: true, NoDefaultDate: true, Concurrency: poolSize, MaxRequestBodySize: 64 << 20,
		Handler: func(ctx *fasthttp.RequestCtx) {
			if err := pool[int(turn.Add(1))%len(pool)].Do(&ctx.Request, &ctx.Response); err != nil {
				ctx.Error("the engine cannot be reached", fasthttp.StatusBadGateway)
				return
			}
			if ctx.Response.IsBodyStream() {
				ctx.Response.ImmediateHeaderFlush = true
			}
		}}
	return s.Serve(ln)
}

func serveHTTP(ln net.Listener, engines []string) error {
	var turn atomic.Uint32
	t := &http.Transport{MaxIdleConns: poolSize, MaxIdleConnsPerHost: poolSize, IdleConnTimeout: time.Hour, DisableCompression: true}
	p := &httputil.ReverseProxy{Transport: t, FlushInterval: -1, ErrorLog: nil,
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(&url.URL{Scheme: "http", Host: engines[int(turn.Add(1))%len(engines)]})
		}}
	return http.Serve(ln, p)
}
