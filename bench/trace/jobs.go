package trace

import (
	"fmt"
	"io"
)

// OpenRates opens a file of request rates (ServeGen). Close the stream.
func OpenRates(path string) (*Stream[Rate], error) { return openWith(path, ReadRates) }

// ReadRates is OpenRates on an open reader; name is for errors.
func ReadRates(r io.Reader, name string) (*Stream[Rate], error) {
	in, err := plain(r, name)
	if err != nil {
		return nil, err
	}
	t, err := newTable(in, name)
	if err != nil {
		return nil, err
	}
	if !t.has("t_s", "client", "rate_rps", "iat_cv", "iat_dist", "iat_shape", "iat_scale") {
		return nil, fmt.Errorf("%w: %s:1: rates need the columns t_s, client, rate_rps, iat_cv, iat_dist, iat_shape, iat_scale; rename the columns", ErrFormat, name)
	}
	return &Stream[Rate]{next: func() (Rate, error) {
		if err := t.advance(); err != nil {
			return Rate{}, err
		}
		v := Rate{
			AtMs: t.number("t_s") * 1000, Client: t.text("client"), RateRps: t.number("rate_rps"),
			IatCV: t.number("iat_cv"), IatDist: t.text("iat_dist"), Shape: t.number("iat_shape"), ScaleS: t.number("iat_scale"),
		}
		if v.IatDist != "Gamma" && v.IatDist != "Weibull" {
			t.bad("iat_dist", "Gamma or Weibull")
		}
		return v, t.err
	}}, nil
}

// OpenJobs opens a file of training jobs: Philly, Pollux or openb. Close the stream.
func OpenJobs(path string) (*Stream[Job], error) { return openWith(path, ReadJobs) }

// ReadJobs is OpenJobs on an open reader; name is for errors.
func ReadJobs(r io.Reader, name string) (*Stream[Job], error) {
	in, err := plain(r, name)
	if err != nil {
		return nil, err
	}
	t, err := newTable(in, name)
	if err != nil {
		return nil, err
	}
	var row func(*table) Job
	switch {
	case t.has("job_id", "vc", "submit_s", "duration_s", "gpus"):
		row = phillyJob
	case t.has("job_id", "workload", "submit_s", "app", "gpus", "batch_size"):
		row = polluxJob
	case t.has("job_id", "qos", "submit_s", "lifetime_s", "gpus", "gpu_milli"):
		row = openbJob
	default:
		return nil, fmt.Errorf("%w: %s:1: jobs need the columns of Philly (job_id, vc, submit_s, duration_s, gpus), Pollux (workload, job_id, submit_s, app, gpus, batch_size) or openb (submit_s, job_id, qos, lifetime_s, gpus, gpu_milli); rename the columns", ErrFormat, name)
	}
	return &Stream[Job]{next: func() (Job, error) {
		if err := t.advance(); err != nil {
			return Job{}, err
		}
		j := row(t)
		return j, t.err
	}}, nil
}

func phillyJob(t *table) Job {
	return Job{
		ID: t.text("job_id"), Group: t.text("vc"), SubmitMs: t.number("submit_s") * 1000,
		DurationMs: t.number("duration_s") * 1000, GPUs: t.count("gpus"), GPUMilli: 1000,
	}
}

func polluxJob(t *table) Job {
	return Job{
		ID: t.text("job_id"), Group: t.text("workload"), SubmitMs: t.number("submit_s") * 1000,
		App: t.text("app"), GPUs: t.count("gpus"), GPUMilli: 1000, BatchSize: t.count("batch_size"),
	}
}

func openbJob(t *table) Job {
	j := Job{
		ID: t.text("job_id"), Group: t.text("qos"), SubmitMs: t.number("submit_s") * 1000,
		GPUs: t.count("gpus"), GPUMilli: 1000,
	}
	// A pod that never ended has no life time.
	if t.text("lifetime_s") != "" {
		j.DurationMs = t.number("lifetime_s") * 1000
	}
	if j.GPUs == 1 && t.text("gpu_milli") != "" {
		j.GPUMilli = t.count("gpu_milli")
	}
	return j
}
