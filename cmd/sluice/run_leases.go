package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"

	"sluice/router"
)

// agentLeases asks agents for the leases that fence a replica's sleep.
type agentLeases struct {
	gateway string // this gateway's name
	scheme  string
	client  *http.Client
}

const maxLeaseAnswer = 4 << 10

func (a *agentLeases) url(r *router.Replica) string {
	return a.scheme + "://" + r.AgentAddr + "/v1/leases/" + url.PathEscape(r.ID)
}

// Renew implements own.Leaser.
func (a *agentLeases) Renew(ctx context.Context, r router.Replica) (int64, error) {
	body, err := json.Marshal(map[string]string{"gateway": a.gateway})
	if err != nil {
		return 0, fmt.Errorf("encode a lease request: %w", err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, a.url(&r), bytes.NewReader(body))
	if err != nil {
		return 0, fmt.Errorf("lease of %s: %w", r.ID, err)
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := a.client.Do(req)
	if err != nil {
		return 0, fmt.Errorf("lease of %s: %w", r.ID, err)
	}
	defer res.Body.Close()
	data, err := io.ReadAll(io.LimitReader(res.Body, maxLeaseAnswer))
	if err != nil {
		return 0, fmt.Errorf("lease of %s: %w", r.ID, err)
	}
	switch res.StatusCode {
	case http.StatusOK:
		var ok struct {
			TTLMs int64 `json:"ttlMs"`
		}
		if err := json.Unmarshal(data, &ok); err != nil {
			return 0, fmt.Errorf("lease of %s: %w", r.ID, err)
		}
		return ok.TTLMs, nil
	case http.StatusConflict, http.StatusNotFound:
		return 0, fmt.Errorf("lease of %s: %w", r.ID, router.ErrLeaseRefused)
	default:
		return 0, fmt.Errorf("lease of %s: the agent answered %d", r.ID, res.StatusCode)
	}
}

// Return implements own.Leaser.
func (a *agentLeases) Return(ctx context.Context, r router.Replica) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodDelete, a.url(&r)+"?gateway="+url.QueryEscape(a.gateway), nil)
	if err != nil {
		return fmt.Errorf("return the lease of %s: %w", r.ID, err)
	}
	res, err := a.client.Do(req)
	if err != nil {
		return fmt.Errorf("return the lease of %s: %w", r.ID, err)
	}
	res.Body.Close()
	return nil
}
