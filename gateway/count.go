package gateway

import (
	"time"

	"github.com/valyala/fasthttp"

	"sluice/gateway/anthropic"
	"sluice/slo"
)

// countWaitMs bounds the asking of an engine for a count. An estimate that is there beats a count that is not.
const countWaitMs = 2_000

// hurryCount shortens the call's deadline.
func (k *call) hurryCount() {
	if soon := time.Now().Add(ms(countWaitMs)); soon.Before(k.deadline) {
		k.deadline = soon
	}
	k.ask.DeadlineMs = min(k.ask.DeadlineMs, k.srv.deps.NowMs()+countWaitMs)
}

// estimates reports that the call asks for a count which, if no engine gives it, is estimated: no failure is told.
func (k *call) estimates() bool { return k.translation != nil && k.translation.count && !k.begun }

// tellCount answers with the count of an engine that has vLLM's way to tokenize, or with an estimate.
func (k *call) tellCount() verdict {
	if n, ok := anthropic.ReadCount(k.translation.whole); ok {
		k.answerCount(n)
	} else {
		k.tellEstimate()
	}
	return answered
}

// tellEstimate answers with an estimate.
func (k *call) tellEstimate() { k.answerCount(anthropic.EstimateTokens(k.translation.chat)) }

func (k *call) answerCount(n int) {
	k.outcome, k.told.code = slo.OK, ""
	k.out = anthropic.AppendCount(k.out[:0], n)
	k.answer(fasthttp.StatusOK, k.out)
}
