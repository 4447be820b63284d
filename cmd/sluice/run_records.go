package main

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"sluice/gateway/sink"
)

// recordFlags say what is told of each request, and where to.
type recordFlags struct {
	accessLog string
	sample    float64
	otlp      string
}

func (r *recordFlags) add(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&r.accessLog, "access-log", "", "write a line of JSON for each request to this file, - for standard output; SIGHUP opens it anew")
	f.Float64Var(&r.sample, "access-log-sample", 1, "share of the lines of requests that went well, above 0 to 1; failures are always written")
	f.StringVar(&r.otlp, "otlp", "", "send traces to this collector by OTLP over HTTP, as http://127.0.0.1:4318; also OTEL_EXPORTER_OTLP_ENDPOINT")
}

// config takes the flags first, then OpenTelemetry's environment. Errors do not quote what may hold a credential.
func (r *recordFlags) config(env func(string) string, node string, log *slog.Logger) (sink.Config, error) {
	if !(r.sample > 0 && r.sample <= 1) {
		return sink.Config{}, fmt.Errorf("--access-log-sample %v: must be above 0 and not above 1", r.sample)
	}
	if r.sample != 1 && r.accessLog == "" {
		return sink.Config{}, errors.New("--access-log-sample thins the access log and there is none: give --access-log too")
	}
	cfg := sink.Config{LogFile: r.accessLog, LogSample: r.sample}
	cfg.Fail = func(what string, err error) {
		if err != nil {
			log.Warn(what, "error", err)
			return
		}
		log.Info(what)
	}
	if cfg.TracesURL = tracesURL(r.otlp, env); cfg.TracesURL == "" {
		return cfg, nil
	}
	if r.otlp == "" && strings.HasPrefix(first(env, "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"), "grpc") {
		return cfg, errors.New("OTEL_EXPORTER_OTLP_PROTOCOL is grpc: traces go by HTTP; set it to http/json and the endpoint to the collector's HTTP port, mostly 4318")
	}
	cfg.TracesHeader = http.Header{}
	for _, name := range []string{"OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS"} {
		pairs, err := envPairs(name, env(name))
		if err != nil {
			return cfg, err
		}
		for _, p := range pairs {
			cfg.TracesHeader.Set(p.Name, p.Text)
		}
	}
	attributes, err := envPairs("OTEL_RESOURCE_ATTRIBUTES", env("OTEL_RESOURCE_ATTRIBUTES"))
	if err != nil {
		return cfg, err
	}
	service := first(env, "OTEL_SERVICE_NAME")
	own := []sink.Attribute{{Name: "service.name", Text: service}, {Name: "service.version", Text: version}, {Name: "service.instance.id", Text: node}}
	if named := slices.ContainsFunc(attributes, func(a sink.Attribute) bool { return a.Name == "service.name" }); service == "" && !named {
		own[0].Text = "sluice"
	}
	for _, a := range own {
		if a.Text != "" {
			attributes = slices.DeleteFunc(attributes, func(b sink.Attribute) bool { return a.Name == b.Name })
			attributes = append(attributes, a)
		}
	}
	cfg.Resource = attributes
	return cfg, cfg.Validate()
}

// tracesURL is where spans are posted to; empty: nowhere.
func tracesURL(flag string, env func(string) string) string {
	if flag == "" && (strings.EqualFold(env("OTEL_SDK_DISABLED"), "true") || env("OTEL_TRACES_EXPORTER") == "none") {
		return ""
	}
	if flag == "" {
		if whole := env("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"); whole != "" {
			return whole
		}
		flag = env("OTEL_EXPORTER_OTLP_ENDPOINT")
	}
	if flag == "" {
		return ""
	}
	return strings.TrimRight(flag, "/") + "/v1/traces"
}

func first(env func(string) string, names ...string) string {
	for _, name := range names {
		if v := env(name); v != "" {
			return v
		}
	}
	return ""
}

// envPairs reads name=value,name=value, values in percent encoding.
func envPairs(variable, text string) ([]sink.Attribute, error) {
	var out []sink.Attribute
	for pair := range strings.SplitSeq(text, ",") {
		if strings.TrimSpace(pair) == "" {
			continue
		}
		name, value, ok := strings.Cut(pair, "=")
		decoded, err := url.PathUnescape(strings.TrimSpace(value))
		if name = strings.TrimSpace(name); !ok || name == "" || err != nil {
			return nil, fmt.Errorf("%s is not understood: write name=value,name=value with values in percent encoding", variable)
		}
		out = append(out, sink.Attribute{Name: name, Text: decoded})
	}
	return out, nil
}

// openRecords opens what tells of requests, if anything does, and opens the access log anew on SIGHUP.
func (s *server) openRecords() error {
	cfg := s.opts.Records
	if cfg.LogFile == "" && cfg.TracesURL == "" {
		return nil
	}
	var err error
	if s.records, err = sink.Open(cfg); err != nil {
		return err
	}
	if cfg.LogFile == "" || cfg.LogFile == sink.Stdout {
		return nil
	}
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	s.wg.Go(func() {
		defer signal.Stop(hup)
		for {
			select {
			case <-hup:
			case <-s.stop:
				return
			}
			if err := s.records.Reopen(); err != nil {
				s.opts.Log.Error("the old access log goes on", "error", err)
				continue
			}
			s.opts.Log.Info("opened the access log anew")
		}
	})
	return nil
}
