package agent

import "sluice/nodes"

// answerLog keeps the last MaxAnswers answers by order id. The zero value is
// empty and ready.
type answerLog struct {
	byID  map[string]nodes.Answer
	order []string
}

func (a *answerLog) put(ans nodes.Answer) {
	if a.byID == nil {
		a.byID = make(map[string]nodes.Answer)
	}
	if _, known := a.byID[ans.ID]; !known {
		a.order = append(a.order, ans.ID)
	}
	a.byID[ans.ID] = ans
	for len(a.order) > MaxAnswers {
		delete(a.byID, a.order[0])
		a.order = a.order[1:]
	}
}

func (a *answerLog) get(id string) (nodes.Answer, bool) {
	ans, ok := a.byID[id]
	return ans, ok
}

// forget drops the answers about a holder.
func (a *answerLog) forget(holder string) {
	kept := a.order[:0]
	for _, id := range a.order {
		if a.byID[id].Holder == holder {
			delete(a.byID, id)
		} else {
			kept = append(kept, id)
		}
	}
	a.order = kept
}

// all returns the answers, oldest first.
func (a *answerLog) all() []nodes.Answer {
	out := make([]nodes.Answer, len(a.order))
	for i, id := range a.order {
		out[i] = a.byID[id]
	}
	return out
}
