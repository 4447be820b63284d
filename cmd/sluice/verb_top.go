package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"sluice/gateway/admin"
)

// minInterval keeps `top` from being a load of its own.
const minInterval = 100 * time.Millisecond

func newTopCmd() *cobra.Command {
	c := &cobra.Command{Use: "top", Short: "Live view: who holds each GPU, headroom, jobs, decisions", Args: argCount(0, ""),
		Long: "Draws the floor and renews it. q or ctrl-c ends it. Without a terminal, or with\n-o json, it writes the picture again and again as lines.\n\n" +
			"Of a GPU it shows who holds it: chat+2 is chat, with two more that sleep or have\nyielded in its memory; free+1 is held by nobody, with one in its memory; →bert is\nreserved for bert. Replicas are ready+coming/needed, ranks are now/wanted. Times\nbefore decisions say how long ago.",
		Example: "  sluice top\n  sluice top --interval 5s\n  sluice top --once | grep ^job"}
	conn, out := addClientFlags(c), outputFlag(c)
	interval := c.Flags().Duration("interval", time.Second, "time between pictures")
	once := c.Flags().Bool("once", false, "write one picture as lines and end")
	c.RunE = func(c *cobra.Command, _ []string) error {
		if err := out.check(c); err != nil {
			return err
		}
		if *interval < minInterval {
			return &usageError{text: fmt.Sprintf("--interval %s is below %s", *interval, minInterval), see: c.CommandPath()}
		}
		cl, err := conn.open()
		if err != nil {
			return err
		}
		tty, isTTY := terminal(c)
		if *once || !isTTY || out.format != "table" {
			return topLines(c, cl, out, *interval, *once)
		}
		return topLive(c.Context(), cl, tty, *interval)
	}
	return c
}

// terminal is the output when it is one.
func terminal(c *cobra.Command) (*os.File, bool) {
	f, ok := c.OutOrStdout().(*os.File)
	return f, ok && term.IsTerminal(int(f.Fd()))
}

// topLines writes pictures as plain lines or documents.
func topLines(c *cobra.Command, cl *client, out *output, interval time.Duration, once bool) error {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		s, err := getStatus(c.Context(), cl)
		if err != nil {
			return err
		}
		if out.format != "table" {
			err = out.line(c.OutOrStdout(), s)
		} else {
			err = out.print(c, s, func(t *table) {
				for _, l := range statusLines(s) {
					t.text("%s", l)
				}
				if !once {
					t.text("")
				}
			})
		}
		if err != nil || once {
			return err
		}
		select {
		case <-c.Context().Done():
			return nil
		case <-tick.C:
		}
	}
}

func getStatus(ctx context.Context, cl *client) (*admin.Status, error) {
	var s admin.Status
	if err := cl.call(ctx, http.MethodGet, apiPath("status"), nil, &s); err != nil {
		return nil, err
	}
	return &s, nil
}

// topLive draws on a terminal until q, ctrl-c or the end of ctx.
func topLive(ctx context.Context, cl *client, tty *os.File, interval time.Duration) error {
	if _, err := getStatus(ctx, cl); err != nil {
		return err // said on the plain screen
	}
	p := tea.NewProgram(topModel{ctx: ctx, cl: cl, interval: interval, width: 80, height: 24}, tea.WithContext(ctx), tea.WithOutput(tty), tea.WithoutSignalHandler())
	if _, err := p.Run(); err != nil && ctx.Err() == nil {
		return fmt.Errorf("drawing on the terminal: %w", err)
	}
	return nil
}

// topModel is the state of the live view. bubbletea's loop owns it.
type topModel struct {
	ctx      context.Context // of the verb; bubbletea gives none to its commands
	cl       *client
	interval time.Duration

	width, height int
	status        *admin.Status
	err           error
}

// gotStatus brings a picture or the reason why there is none.
type gotStatus struct {
	status *admin.Status
	err    error
}

// Init implements tea.Model.
func (m topModel) Init() tea.Cmd { return m.fetch }

func (m topModel) fetch() tea.Msg {
	s, err := getStatus(m.ctx, m.cl)
	return gotStatus{s, err}
}

// Update implements tea.Model. The next fetch is asked for only when one has
// come back, so that a slow server is asked less often.
func (m topModel) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		m.width, m.height = msg.Width, msg.Height
	case tea.KeyPressMsg:
		switch msg.String() {
		case "q", "ctrl+c", "esc":
			return m, tea.Quit
		}
	case gotStatus:
		m.err = msg.err
		if msg.err == nil {
			m.status = msg.status // an old picture stays under an error
		}
		return m, tea.Tick(m.interval, func(time.Time) tea.Msg { return m.fetch() })
	}
	return m, nil
}

// View implements tea.Model.
func (m topModel) View() tea.View {
	text := ""
	if m.status != nil {
		text = renderStatus(*m.status, m.width, m.height-1)
	}
	foot := styled(styleDim, cell("q quits   "+boxLegend, m.width))
	if m.err != nil {
		foot = styled(styleRed, cell(m.err.Error(), m.width))
	}
	v := tea.NewView(text + "\n" + foot)
	v.AltScreen = true
	v.WindowTitle = "sluice top"
	return v
}
