package trace

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
)

func gz(t *testing.T, s string) []byte {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	if _, err := z.Write([]byte(s)); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func requestsOf(t *testing.T, raw []byte, seed uint64) []Request {
	t.Helper()
	s, err := ReadRequests(bytes.NewReader(raw), "x", seed)
	if err != nil {
		t.Fatal(err)
	}
	rs, err := Collect(s)
	if err != nil {
		t.Fatal(err)
	}
	return rs
}

func TestAzureIsBuiltIn(t *testing.T) {
	rs, err := Azure2023()
	if err != nil {
		t.Fatal(err)
	}
	if len(rs) != 19366 {
		t.Fatalf("%d requests", len(rs))
	}
	if r := rs[1]; r.AtMs != 4314.579 || r.InputTokens != 396 || r.OutputTokens != 109 {
		t.Errorf("second request %+v", r)
	}
	if last := rs[len(rs)-1].AtMs; last < 57*60_000 || last > 59*60_000 {
		t.Errorf("ends at %v ms", last)
	}
}

func TestRequestsCSV(t *testing.T) {
	text := "t_s,client,input_tokens,output_tokens\n0.001,20,293,8\n0.001,88,495,1\n4.2,20,1,1\n"
	for _, raw := range [][]byte{[]byte(text), gz(t, text)} {
		rs := requestsOf(t, raw, 0)
		if len(rs) != 3 || rs[1].Client != "88" || rs[0].Client != "20" || rs[2].AtMs != 4200 || rs[1].InputTokens != 495 {
			t.Errorf("read %+v", rs)
		}
	}
}

func mooncakeText() string {
	var b strings.Builder
	for i := range 40 {
		fmt.Fprintf(&b, `{"timestamp":%d,"input_length":%d,"output_length":5,"hash_ids":[0,%d]}`+"\n", i/10*3000, i, i)
	}
	return b.String()
}

func TestMooncakeIsSpreadOverItsGrid(t *testing.T) {
	a, again, other := requestsOf(t, gz(t, mooncakeText()), 1), requestsOf(t, []byte(mooncakeText()), 1), requestsOf(t, []byte(mooncakeText()), 2)
	if len(a) != 40 || len(other) != 40 {
		t.Fatalf("%d requests", len(a))
	}
	for i := range a {
		if a[i].AtMs != again[i].AtMs || !slices.Equal(a[i].Blocks, again[i].Blocks) {
			t.Fatal("one seed, two results")
		}
		if i > 0 && a[i].AtMs < a[i-1].AtMs {
			t.Fatal("goes backwards")
		}
		if cell := float64(a[i].InputTokens / 10 * 3000); a[i].AtMs < cell || a[i].AtMs >= cell+3000 {
			t.Fatalf("request of %v at %v", cell, a[i].AtMs)
		}
		if len(a[i].Blocks) != 2 || a[i].Blocks[1] != int64(a[i].InputTokens) {
			t.Fatalf("blocks %v", a[i].Blocks)
		}
	}
	if a[0].AtMs == other[0].AtMs || a[0].AtMs == a[1].AtMs {
		t.Error("the seed changes nothing")
	}
}

func TestRatesAndJobs(t *testing.T) {
	s, err := ReadRates(strings.NewReader("t_s,client,rate_rps,iat_cv,iat_dist,iat_shape,iat_scale\n600,4,0.5,1.42,Gamma,0.4957,12.033\n"), "rates")
	if err != nil {
		t.Fatal(err)
	}
	rates, err := Collect(s)
	if err != nil || len(rates) != 1 || rates[0] != (Rate{600000, "4", 0.5, 1.42, "Gamma", 0.4957, 12.033}) {
		t.Fatalf("rates %+v, %v", rates, err)
	}
	for _, c := range []struct {
		text string
		want Job
	}{
		{"job_id,vc,submit_s,duration_s,gpus\nj,v,6,100,4\n", Job{ID: "j", Group: "v", SubmitMs: 6000, DurationMs: 100000, GPUs: 4, GPUMilli: 1000}},
		{"workload,job_id,submit_s,app,gpus,batch_size\n1,j,107,ncf,6,320\n", Job{ID: "j", Group: "1", SubmitMs: 107000, GPUs: 6, GPUMilli: 1000, App: "ncf", BatchSize: 320}},
		{"submit_s,job_id,qos,phase,scheduled_s,end_s,lifetime_s,gpus,gpu_milli,gpu_spec,cpu_milli,memory_mib\n7,j,LS,Running,7,,,1,460,,6000,1\n", Job{ID: "j", Group: "LS", SubmitMs: 7000, GPUs: 1, GPUMilli: 460}},
	} {
		s, err := ReadJobs(strings.NewReader(c.text), "jobs")
		if err != nil {
			t.Fatal(err)
		}
		if got, err := Collect(s); err != nil || len(got) != 1 || got[0] != c.want {
			t.Errorf("%s: %+v, %v", c.text, got, err)
		}
	}
}

func TestErrorsNamePlaceAndRemedy(t *testing.T) {
	head := "t_s,input_tokens,output_tokens\n"
	for _, c := range []struct{ text, place, remedy string }{
		{"", "x: empty", "name the columns"},
		{"a,b\n", "x:1", "rename the columns"},
		{head + "0,1,1\n1,x,1\n", "x:3: column input_tokens", "remove the line"},
		{head + "0,1,1\n1,-4,1\n", "x:3: column input_tokens", "at least 0"},
		{head + "5,1,1\n1,1,1\n", "x:3: column t_s", "sort the file"},
		{head + "NaN,1,1\n", "x:2: column t_s", "number"},
		{head + "1,1\n", "x:2", "mend or remove"},
		{`{"timestamp":0,"input_length":1,"output_length":1}` + "\n{\"timestamp\":1\n", "x:2", "mend or remove"},
		{`{"timestamp":0,"input_length":1}`, "x:1", "output_length"},
		{`{"timestamp":9,"input_length":1,"output_length":1}` + "\n" + `{"timestamp":1,"input_length":1,"output_length":1}`, "x:2", "sort"},
		{string(gz(t, head+strings.Repeat("1,1,1\n", 9999))[:60]), "x:", "fetch the file again"},
	} {
		s, err := ReadRequests(strings.NewReader(c.text), "x", 0)
		if err == nil {
			_, err = Collect(s)
			if _, again := s.Next(); again == nil || again.Error() != err.Error() {
				t.Errorf("the error did not stay: %v", again)
			}
		}
		if !errors.Is(err, ErrFormat) || !strings.Contains(err.Error(), c.place) || !strings.Contains(err.Error(), c.remedy) {
			t.Errorf("%.40q: error %v, want %q and %q", c.text, err, c.place, c.remedy)
		}
	}
	if _, err := OpenRequests("/nonexistent/file", 0); err == nil {
		t.Error("a file that is not there was opened")
	}
}

func TestThinSliceSpeed(t *testing.T) {
	rs, err := Azure2023()
	if err != nil {
		t.Fatal(err)
	}
	half, fifth := Thin(rs, 0.5, 3), Thin(rs, 0.2, 3)
	if n := len(half); n < 9200 || n > 10200 {
		t.Errorf("half is %d", n)
	}
	in := map[float64]bool{}
	for _, q := range half {
		in[q.AtMs] = true
	}
	for _, q := range fifth {
		if !in[q.AtMs] {
			t.Fatal("the smaller fraction is not a subset")
		}
	}
	if len(Thin(rs, 1, 3)) != len(rs) || len(Thin(rs, 0, 3)) != 0 {
		t.Error("all or nothing")
	}
	part := Slice(rs, 60_000, 120_000)
	if len(part) == 0 || part[0].AtMs < 0 || part[len(part)-1].AtMs >= 60_000 {
		t.Errorf("slice of %d", len(part))
	}
	if fast := Speed(rs, 10); fast[1].AtMs != rs[1].AtMs/10 || rs[1].AtMs != 4314.579 {
		t.Error("speed")
	}
}

func FuzzReadRequests(f *testing.F) {
	f.Add([]byte("t_s,input_tokens,output_tokens\n0,1,1\n"))
	f.Add([]byte(mooncakeText()))
	f.Add([]byte{0x1f, 0x8b, 8})
	f.Fuzz(func(t *testing.T, raw []byte) {
		s, err := ReadRequests(bytes.NewReader(raw), "x", 1)
		if err != nil {
			return
		}
		rs, _ := Collect(s)
		for i := 1; i < len(rs); i++ {
			if rs[i].AtMs < rs[i-1].AtMs {
				t.Fatal("goes backwards")
			}
		}
	})
}
