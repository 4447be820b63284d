package trust

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
)

const (
	// JoinPath is where JoinHandler is mounted on the control port.
	JoinPath = "/v1/join"
	// maxWelcomeBytes bounds the server's answer; a longer one is an error.
	maxWelcomeBytes = 64 << 10
	// maxJoinBytes bounds what an agent sends; a longer one is refused.
	maxJoinBytes = 2 * maxCSRBytes
	// maxReasonBytes bounds what is shown of a server's refusal.
	maxReasonBytes = 512
)

// ErrRefused: the server knows the token no longer, or never did.
var ErrRefused = errors.New("the server refused the join token: make another with `sluice token create`")

// Welcome is what a server tells an agent that proved itself.
type Welcome struct {
	Label     string `json:"label"`     // of gossip
	GossipKey []byte `json:"gossipKey"` // 32 bytes, secret
	CAPEM     string `json:"caPem"`
	AgentKey  string `json:"agentKey,omitempty"` // what servers show to agents, secret
	CertPEM   string `json:"certPem,omitempty"`  // the agent's, if it asked for one
}

// LogValue masks the keys in slog.
func (w Welcome) LogValue() slog.Value {
	return slog.GroupValue(slog.String("label", w.Label), slog.String("gossipKey", "***"), slog.String("agentKey", "***"))
}

// Format masks the keys in fmt.
func (w Welcome) Format(f fmt.State, _ rune) {
	fmt.Fprintf(f, "{label:%s gossipKey:*** agentKey:***}", w.Label)
}

// joinRequest is the body of a join; none asks for no certificate.
type joinRequest struct {
	CSRPEM string `json:"csrPem,omitempty"`
}

// JoinHandler answers POST JoinPath with a Welcome to whoever bears a token
// that store knows, and signs the certificate request that came along, if any.
// nowMs gives fleet time. Each certificate is told to log (nil: to nobody).
func JoinHandler(a *Authority, store TokenStore, nowMs func() int64, log *slog.Logger) http.Handler {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost {
			w.Header().Set("Allow", http.MethodPost)
			http.Error(w, "use POST", http.StatusMethodNotAllowed)
			return
		}
		id, err := VerifyBearer(store, r.Header.Get("Authorization"), nowMs())
		if err != nil {
			w.Header().Set("WWW-Authenticate", "Bearer")
			http.Error(w, err.Error(), http.StatusUnauthorized)
			return
		}
		welcome := Welcome{Label: a.Label(), GossipKey: a.GossipKey(), CAPEM: string(a.CAPEM()), AgentKey: a.AgentKey()}
		if welcome.CertPEM, err = a.answerRequest(w, r, id, log); err != nil {
			log.Warn("a joining agent's request is refused", "token", id, "from", r.RemoteAddr, "error", err)
			status := http.StatusInternalServerError
			if errors.Is(err, ErrRequest) {
				status = http.StatusBadRequest
			}
			http.Error(w, err.Error(), status)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Cache-Control", "no-store")
		// An error here is a client that left: there is nobody to tell.
		_ = json.NewEncoder(w).Encode(welcome)
	})
}

// answerRequest signs what the body asks for; "" when it asks for nothing.
func (a *Authority) answerRequest(w http.ResponseWriter, r *http.Request, token string, log *slog.Logger) (string, error) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxJoinBytes))
	if err != nil {
		return "", fmt.Errorf("trust: %w: it cannot be read, or has over %d bytes", ErrRequest, maxJoinBytes)
	}
	if len(body) == 0 {
		return "", nil
	}
	var ask joinRequest
	if json.Unmarshal(body, &ask) != nil {
		return "", fmt.Errorf(`trust: %w: the body must be {"csrPem":"…"}`, ErrRequest)
	}
	if ask.CSRPEM == "" {
		return "", nil
	}
	leaf, err := a.signAgent([]byte(ask.CSRPEM))
	if err != nil {
		return "", err
	}
	log.Info("signed an agent's certificate", "token", token, "from", r.RemoteAddr, "node", leaf.Subject.CommonName,
		"hosts", namesOf(leaf), "serial", leaf.SerialNumber.Text(16), "until", leaf.NotAfter)
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: leaf.Raw})), nil
}

// Join presents the token to the server at addr (host:port of its control
// port) and returns what an agent needs to take part. csrPEM asks for a
// certificate (Identity makes one); nil asks for none. Errors: ErrWrongCluster,
// ErrServerName, ErrNotServer, ErrRefused, ErrRequest, or the network's.
func Join(ctx context.Context, addr string, t Token, csrPEM []byte) (Welcome, error) {
	client := HTTPClient(t)
	defer client.CloseIdleConnections()
	body, err := json.Marshal(joinRequest{CSRPEM: string(csrPEM)})
	if err != nil {
		return Welcome{}, fmt.Errorf("trust: joining: %w", err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+addr+JoinPath, bytes.NewReader(body))
	if err != nil {
		return Welcome{}, fmt.Errorf("trust: the address %q: %w", addr, err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := client.Do(req)
	if err != nil {
		return Welcome{}, fmt.Errorf("trust: joining at %s: %w", addr, err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxWelcomeBytes))
	if err != nil {
		return Welcome{}, fmt.Errorf("trust: joining at %s: %w", addr, err)
	}
	switch resp.StatusCode {
	case http.StatusOK:
	case http.StatusUnauthorized:
		return Welcome{}, fmt.Errorf("trust: joining at %s: %w", addr, ErrRefused)
	case http.StatusBadRequest:
		reason := strings.TrimSpace(string(answer[:min(len(answer), maxReasonBytes)]))
		return Welcome{}, fmt.Errorf("trust: joining at %s: %w: the server says %q", addr, ErrRequest, reason)
	default:
		return Welcome{}, fmt.Errorf("trust: joining at %s: the server answered %s: is this the control port?", addr, resp.Status)
	}
	var w Welcome
	if err := json.Unmarshal(answer, &w); err != nil || len(w.GossipKey) != 32 {
		return Welcome{}, fmt.Errorf("trust: joining at %s: the answer is no welcome: is this the control port?", addr)
	}
	return w, nil
}
