package slo

// fitTokens and fitBatches are where Fit looks.
var (
	fitTokens  = [...]int{64, 128, 256, 512, 1024, 2048, 4096}
	fitBatches = [...]int{1, 2, 4, 8, 16, 32, 64, 128, 256}
)

// Fit makes a Service from measured times: prefillMs of one prompt of so many tokens, decodeMs of one step of a batch
// of so many sequences, asked up to maxBatch (0: no limit). Give it tokens with WithTokens before computing with it.
func Fit(prefillMs func(tokens int) float64, decodeMs func(batch int) float64, maxBatch int) Service {
	var prefill, decode line
	for _, tokens := range fitTokens {
		prefill.weigh(1, float64(tokens), prefillMs(tokens))
	}
	for _, batch := range fitBatches {
		if maxBatch <= 0 || batch <= maxBatch {
			decode.weigh(1, float64(batch), decodeMs(batch))
		}
	}
	s := Service{MaxBatch: maxBatch, ArrivalSCV: 1}
	s.PrefillBaseMs, s.PrefillMsPerToken = prefill.fit()
	s.DecodeBaseMs, s.DecodeMsPerSeq = decode.fit()
	return s
}

// WithTokens returns s for requests with the given tokens, one of each slice a request. The slices are not kept.
func (s Service) WithTokens(input, output []int) Service {
	s.InputTokens, s.OutputTokens = pointsOfInts(input), pointsOfInts(output)
	return s
}

func pointsOfInts(values []int) Points {
	floats := make([]float64, len(values))
	for i, v := range values {
		floats[i] = float64(v)
	}
	return PointsOf(floats)
}
