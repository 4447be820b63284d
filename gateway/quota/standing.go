package quota

import "strconv"

// Mark is how a limit stands. The zero value: there is no such limit.
type Mark struct {
	Limit, Remaining int64
	ResetMs          int64 // until all of the limit is there again, if nothing is used meanwhile
}

// tighter keeps the mark that leaves less. Of two that leave the same, the one that takes longer to come back counts.
func (m *Mark) tighter(x Mark) {
	if x.Limit <= 0 {
		return
	}
	if m.Limit == 0 || x.Remaining < m.Remaining || x.Remaining == m.Remaining && x.ResetMs > m.ResetMs {
		*m = x
	}
}

// Standing is what a client is told of its limits: of key and tenant, and of a minute, day and month, always the one
// that leaves least. Concurrent has no reset, since that is up to the client.
type Standing struct {
	Requests, Tokens, Concurrent Mark
}

// Standing tells how the accounts of a hold stand, its own request counted in.
func (l *Ledger) Standing(h *Hold, nowMs int64) Standing { return l.standing(h.key, h.tenant, nowMs) }

// StandingOf tells how a key and a tenant stand. Accounts that have not been used have all of their limits.
func (l *Ledger) StandingOf(ask *Ask, nowMs int64) Standing {
	return l.standing(l.look(ask.Key, false, &ask.KeyLimits, nowMs), l.look(ask.Tenant, true, &ask.TenantLimits, nowMs), nowMs)
}

// look finds an account without keeping a new one.
func (l *Ledger) look(id string, ofTenant bool, limits *Limits, nowMs int64) *account {
	if *limits == (Limits{}) {
		return nil
	}
	a := l.keys[id]
	if ofTenant {
		a = l.tenants[id]
	}
	if a == nil {
		a = &account{id: id, ofTenant: ofTenant}
	}
	l.begin(a, limits, nowMs)
	return a
}

func (l *Ledger) standing(key, tenant *account, nowMs int64) Standing {
	var s Standing
	d := l.date(nowMs)
	for _, a := range [...]*account{key, tenant} {
		if a != nil {
			a.drain(nowMs)
			a.spent.turn(d)
			a.stand(&s, d, nowMs)
		}
	}
	return s
}

func (a *account) stand(s *Standing, d *date, nowMs int64) {
	lim := &a.limits
	if n := int64(lim.RequestsPerMin); n > 0 {
		s.Requests.tighter(a.requests.standing(n))
	}
	if n := int64(lim.TokensPerMin); n > 0 {
		s.Tokens.tighter(a.tokens.standing(n))
	}
	if lim.TokensPerDay > 0 || lim.TokensPerMonth > 0 {
		s.Tokens.tighter(Mark{lim.TokensPerDay, max(0, lim.TokensPerDay-a.spent.dayTokens-a.held), d.dayEndMs - nowMs})
		s.Tokens.tighter(Mark{lim.TokensPerMonth, max(0, lim.TokensPerMonth-a.spent.monthTokens-a.held), d.monthEndMs - nowMs})
	}
	if n := int64(lim.Concurrent); n > 0 {
		s.Concurrent.tighter(Mark{Limit: n, Remaining: max(0, n-int64(a.running))})
	}
}

// headers are the names of what Header tells, in its order.
var headers = [...]string{
	"X-Ratelimit-Limit-Requests", "X-Ratelimit-Remaining-Requests", "X-Ratelimit-Reset-Requests",
	"X-Ratelimit-Limit-Tokens", "X-Ratelimit-Remaining-Tokens", "X-Ratelimit-Reset-Tokens",
	"X-Ratelimit-Limit-Concurrent", "X-Ratelimit-Remaining-Concurrent",
}

// NumHeaders is how many headers there may be.
const NumHeaders = len(headers)

// Header returns the name of header i, from 0 to NumHeaders, and appends its value to dst; the name is empty when there
// is no such limit.
func (s *Standing) Header(i int, dst []byte) (name string, value []byte) {
	m := [...]*Mark{&s.Requests, &s.Tokens, &s.Concurrent}[i/3]
	if m.Limit == 0 {
		return "", dst
	}
	switch i % 3 {
	case 0:
		dst = strconv.AppendInt(dst, m.Limit, 10)
	case 1:
		dst = strconv.AppendInt(dst, m.Remaining, 10)
	default:
		dst = AppendReset(dst, m.ResetMs)
	}
	return headers[i], dst
}

// Append appends the headers, each with its line end.
func (s *Standing) Append(dst []byte) []byte {
	var room [24]byte
	for i := range NumHeaders {
		if name, value := s.Header(i, room[:0]); name != "" {
			dst = append(dst, name...)
			dst = append(dst, ": "...)
			dst = append(dst, value...)
			dst = append(dst, "\r\n"...)
		}
	}
	return dst
}

// AppendReset appends a time as the OpenAI API writes it: 12ms, 1.5s, 6m0s, 25h0m0s.
func AppendReset(dst []byte, ms int64) []byte {
	if ms > 0 && ms < 1000 {
		return append(strconv.AppendInt(dst, ms, 10), "ms"...)
	}
	seconds, rest := ms/1000, ms%1000
	if h := seconds / 3600; h > 0 {
		dst = append(strconv.AppendInt(dst, h, 10), 'h')
	}
	if seconds >= 60 {
		dst = append(strconv.AppendInt(dst, seconds/60%60, 10), 'm')
	}
	dst = strconv.AppendInt(dst, seconds%60, 10)
	if rest > 0 {
		digits := [4]byte{'.', byte('0' + rest/100), byte('0' + rest/10%10), byte('0' + rest%10)}
		n := len(digits)
		for digits[n-1] == '0' {
			n--
		}
		dst = append(dst, digits[:n]...)
	}
	return append(dst, 's')
}
