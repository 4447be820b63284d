// Package trace reads recorded workloads: requests, request rates and training
// jobs, from public data sets in the forms they are commonly cut to, plain or
// gzipped (told by content, not by name).
//
//	requests  CSV  t_s,input_tokens,output_tokens[,client]      (Azure, ServeGen)
//	          JSONL timestamp,input_length,output_length,hash_ids (Mooncake)
//	rates     CSV  t_s,client,rate_rps,iat_cv,iat_dist,iat_shape,iat_scale (ServeGen)
//	jobs      CSV  job_id,vc,submit_s,duration_s,gpus            (Philly)
//	          CSV  workload,job_id,submit_s,app,gpus,batch_size  (Pollux)
//	          CSV  submit_s,job_id,qos,…,lifetime_s,gpus,gpu_milli,… (openb)
//
// Which form a file has is read from its header; columns may stand in any
// order and further ones are ignored. Every error names file, line and column
// and says what to do. Readers stream, so a file may be larger than memory:
//
//	s, err := trace.OpenRequests("azure.csv", 1)
//	defer s.Close()
//	for {
//		r, err := s.Next()
//		if err == io.EOF { break }
//		...
//	}
//
// or everything at once with [Collect]. [Azure2023] is built in.
//
// Times start at 0 at the beginning of the file and requests never go
// backwards. Mooncake's arrivals lie on a 3 s grid; they are spread evenly over
// the 3 s by a seed, because figures below 10 s would speak of the grid.
//
// It does not send anything and does not draw arrivals from rates: the load
// generator does.
package trace

import (
	"bytes"
	_ "embed"
	"errors"
)

// ErrFormat: the file is not what it should be; the text says where and what to do.
var ErrFormat = errors.New("trace: bad format")

// ErrTooLong: Collect met more than MaxRows rows; read the file with Next.
var ErrTooLong = errors.New("trace: too many rows to hold in memory")

// Limits.
const (
	// MaxRows is how many rows Collect returns.
	MaxRows = 20_000_000
	// MaxLineBytes is the longest line of a JSONL file.
	MaxLineBytes = 4 << 20
	// MaxBurst is how many requests may share one point of Mooncake's grid.
	MaxBurst = 100_000
)

// Request is one recorded request.
type Request struct {
	AtMs         float64 // arrival since the beginning of the trace
	InputTokens  int
	OutputTokens int
	Client       string  // "" where the source does not say
	Blocks       []int64 // ids of the 512-token prefix blocks, where known; equal leading ids are one prefix
}

// Rate is one client's traffic in one 600 s window. Windows without traffic
// have no row.
type Rate struct {
	AtMs    float64 // start of the window
	Client  string
	RateRps float64 // requests/s
	IatCV   float64 // coefficient of variation of the inter-arrival times
	IatDist string  // "Gamma" or "Weibull"
	Shape   float64
	ScaleS  float64 // seconds
}

// Job is one recorded training job.
type Job struct {
	ID         string
	Group      string  // virtual cluster, workload or QoS class: what the source groups by
	SubmitMs   float64 // since the beginning of its group
	DurationMs float64 // run time; openb: lifetime, waiting included; 0 where unknown (Pollux)
	GPUs       int     // gang size
	GPUMilli   int     // share of one GPU in thousandths when GPUs is 1 (openb), else 1000
	App        string  // Pollux
	BatchSize  int     // Pollux
}

//go:embed azure_2023_conv.csv
var azureCSV []byte

// Azure2023 is the built-in trace: 19,366 requests in 58 minutes at one
// conversation service. CC-BY-4.0, Microsoft; see azure_2023_conv.LICENSE.txt.
func Azure2023() ([]Request, error) {
	s, err := ReadRequests(bytes.NewReader(azureCSV), "azure_2023_conv.csv", 0)
	if err != nil {
		return nil, err
	}
	return Collect(s)
}
