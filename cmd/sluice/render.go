package main

import (
	"fmt"
	"math"
	"strings"

	"github.com/charmbracelet/x/ansi"

	"sluice/gateway/admin"
	"sluice/nodes/registry"
)

// Smallest screen that is drawn; a smaller one gets the top left of it.
const (
	minWidth  = 60
	minHeight = 12
)

// The sixteen colours of every terminal, so that people's own palettes hold.
const (
	styleReset = "\x1b[0m"
	styleBold  = "\x1b[1m"
	styleDim   = "\x1b[2m"
	styleRed   = "\x1b[31m"
	styleGreen = "\x1b[32m"
	styleAmber = "\x1b[33m"
)

// boxLegend explains what gpuOwner writes; it stands below the picture.
const boxLegend = "GPUs: +1 one more sleeps or has yielded there, → reserved for it"

// bookStyle is the background of a GPU in each state of the books.
var bookStyle = map[string]string{
	"serving": "\x1b[97;44m", "trainingKept": "\x1b[30;42m", "trainingLost": "\x1b[97;41m", "switching": "\x1b[30;43m",
	"reserved": "\x1b[97;45m", "idle": "\x1b[37;100m", "fenced": "\x1b[97;41m", "unknown": "\x1b[30;47m",
}

// bookShort names the states in few letters.
var bookShort = map[string]string{
	"serving": "serving", "trainingKept": "training", "trainingLost": "lost", "switching": "switching",
	"reserved": "reserved", "idle": "idle", "fenced": "fenced", "unknown": "unknown",
}

// renderStatus draws the whole picture as lines of at most width cells, height
// lines in all, with ANSI colours; ansi.Strip makes plain text of it. It is
// pure: the same status gives the same text.
func renderStatus(s admin.Status, width, height int) string {
	w, h := max(width, minWidth), max(height, minHeight)
	lines := []string{headLine(&s)}
	lines = append(lines, gpuLines(&s, w, max(3, h/3))...)
	lines = append(lines, "")
	lines = append(lines, modelLines(&s, w, max(3, h/4))...)
	lines = append(lines, "")
	lines = append(lines, jobLines(&s, max(3, h/4))...)
	lines = append(lines, "", booksLine(&s, w))
	if len(lines) > h {
		lines = lines[:h]
	}
	lines = append(lines, decisionLines(&s, h-len(lines))...)
	for i, l := range lines {
		lines[i] = ansi.Truncate(l, width, styleReset+"…")
	}
	return strings.Join(lines[:min(len(lines), max(1, height))], "\n")
}

func styled(style, text string) string { return style + text + styleReset }

// cell cuts or pads text to exactly n cells.
func cell(text string, n int) string {
	text = ansi.Truncate(clean(text, false), n, "…")
	return text + strings.Repeat(" ", max(0, n-ansi.StringWidth(text)))
}

func headLine(s *admin.Status) string {
	count := map[string]int{}
	for _, g := range s.GPUs {
		count[g.State]++
	}
	var parts []string
	for _, b := range registry.BookStates() {
		if n := count[b.String()]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, bookShort[b.String()]))
		}
	}
	return styled(styleBold, "sluice "+clean(s.Version, false)) + fmt.Sprintf("   %d nodes   %d GPUs: %s", len(s.Nodes), len(s.GPUs), strings.Join(parts, ", "))
}

// gpuLines draws one line a node, each GPU a box with its owner; on many nodes
// one coloured letter a GPU; what does not fit is counted.
func gpuLines(s *admin.Status, width, limit int) []string {
	byNode := map[string][]*admin.GPUStatus{}
	most := 1
	for i := range s.GPUs {
		g := &s.GPUs[i]
		byNode[g.Node] = append(byNode[g.Node], g)
		most = max(most, len(byNode[g.Node]))
	}
	const label = 12
	box := min(16, (width-label)/most-1)
	if len(s.Nodes) > limit || box < 4 {
		return gpuGrid(s, byNode, width, limit)
	}
	var lines []string
	for _, n := range s.Nodes {
		line := cell(n.ID, label-1) + " "
		if n.State != "ready" {
			line = styled(styleRed, cell(n.ID+" "+n.State, label-1)) + " "
		}
		for i, g := range byNode[n.ID] {
			gap := " "
			if i > 0 && byNode[n.ID][i-1].Island != g.Island {
				gap = "│" // another island
			}
			if i == 0 {
				gap = ""
			}
			line += gap + styled(bookStyle[g.State], cell(" "+gpuOwner(g), box))
		}
		lines = append(lines, line)
	}
	return lines
}

func gpuOwner(g *admin.GPUStatus) string {
	switch {
	case g.Fenced != "":
		return "fenced"
	case g.Owner != "":
		text := g.Owner
		if len(g.Residents) > 0 {
			text += fmt.Sprintf("+%d", len(g.Residents))
		}
		return text
	case g.Reserved != "":
		return "→" + g.Reserved
	case len(g.Residents) > 0:
		return fmt.Sprintf("free+%d", len(g.Residents))
	case g.State == "idle":
		return "free"
	}
	return bookShort[g.State]
}

// gpuGrid draws each GPU as one letter of its state.
func gpuGrid(s *admin.Status, byNode map[string][]*admin.GPUStatus, width, limit int) []string {
	var lines []string
	line, used, left := "", 0, 0
	for _, n := range s.Nodes {
		gpus := byNode[n.ID]
		if used+len(gpus)+1 > width && used > 0 {
			lines, line, used = append(lines, line), "", 0
		}
		if len(lines) >= limit-1 {
			left += len(gpus)
			continue
		}
		for _, g := range gpus {
			line += styled(bookStyle[g.State], strings.ToUpper(bookShort[g.State][:1]))
		}
		line += " "
		used += len(gpus) + 1
	}
	if left > 0 {
		line = fmt.Sprintf("… and %d more GPUs", left)
	}
	return append(lines, line)
}

func modelLines(s *admin.Status, width, limit int) []string {
	bar := max(8, min(24, width-89)) // 89 cells are the other columns
	head := fmt.Sprintf("%s %8s %7s  %s %9s %5s  %s", cell("MODEL", 14), "HAS/NEED", "REQ/S", cell("DEMAND OF CAPACITY", bar+12), "HEADROOM", "QUEUE", "OBJECTIVE")
	lines := []string{styled(styleDim, head)}
	for i := range s.Models {
		if len(lines) >= limit && len(s.Models)-i > 1 {
			return append(lines, styled(styleDim, fmt.Sprintf("… and %d more models", len(s.Models)-i)))
		}
		lines = append(lines, modelLine(&s.Models[i], bar))
	}
	if len(s.Models) == 0 {
		lines = append(lines, styled(styleDim, "no model yet: sluice model apply -f model.yaml"))
	}
	return lines
}

func modelLine(m *admin.ModelStatus, bar int) string {
	replicas := fmt.Sprintf("%d", m.Ready)
	if m.Coming > 0 {
		replicas += fmt.Sprintf("+%d", m.Coming)
	}
	if m.External {
		replicas = "url"
	}
	h := m.Headroom
	if h == nil {
		why := "no request yet"
		if m.Waiting != nil {
			why = m.Waiting.Text
		}
		return fmt.Sprintf("%s %8s %7s  %s", cell(m.Name, 14), replicas, "-", styled(styleDim, clean(why, false)))
	}
	replicas += fmt.Sprintf("/%d", h.NeedReplicas)
	use := 0.0
	if h.DemandRps > 0 {
		use = 1
		if h.CapacityRps > 0 {
			use = min(1, h.DemandRps/h.CapacityRps)
		}
	}
	color, headroom, capacity := styleGreen, fmt.Sprintf("%+9.1f", h.HeadroomRps), fmt.Sprintf("%.1f/%.1f", h.DemandRps, h.CapacityRps)
	switch {
	case h.CapacityRps == 0 && m.Ready > 0: // not learned yet, which alarms nobody
		color, use, headroom, capacity = styleDim, 0, "        ?", fmt.Sprintf("%.1f/?", h.DemandRps)
	case h.HeadroomRps < 0:
		color = styleRed
	case use > 0.8:
		color = styleAmber
	}
	worst, objColor := objectiveText(m)
	return fmt.Sprintf("%s %8s %7.1f  %s %11s %s %5d  %s", cell(m.Name, 14), replicas, h.ArrivalRps, styled(color, meter(use, bar)),
		capacity, styled(color, headroom), h.QueueDepth, styled(objColor, worst))
}

// objectiveText shows the objective that is nearest to its threshold.
func objectiveText(m *admin.ModelStatus) (text, color string) {
	near := -1.0
	color = styleDim
	for _, a := range m.Headroom.Objectives {
		share := a.ObservedMs / max(1, a.Objective.ThresholdMs)
		if !a.Met {
			share += 1000 // a missed one is shown first
		}
		if share <= near {
			continue
		}
		near = share
		text = fmt.Sprintf("p%g %s %s of %s", a.Objective.Quantile*100, a.Objective.Metric, observed(a.ObservedMs), ago(int64(a.Objective.ThresholdMs)))
		switch {
		case !a.Met:
			color = styleRed
		case a.ObservedMs > 0:
			color = styleGreen
		}
	}
	return text, color
}

// meter draws a share of n cells.
func meter(share float64, n int) string {
	full := int(math.Round(share * float64(n)))
	return strings.Repeat("█", full) + strings.Repeat("░", n-full)
}

func jobLines(s *admin.Status, limit int) []string {
	lines := []string{styled(styleDim, fmt.Sprintf("%s %s %9s %9s %9s %9s %6s  %s", cell("JOB", 14), cell("PHASE", 10), "WORLD", "STEP", "LOSS", "SAVED", "LOST", "NOTE"))}
	for i := range s.Jobs {
		if len(lines) >= limit && len(s.Jobs)-i > 1 {
			return append(lines, styled(styleDim, fmt.Sprintf("… and %d more jobs", len(s.Jobs)-i)))
		}
		j := &s.Jobs[i]
		lost := fmt.Sprintf("%6d", j.LostSteps)
		if j.LostSteps > 0 {
			lost = styled(styleRed, lost)
		}
		loss := "-"
		if j.Loss != nil {
			loss = fmt.Sprintf("%.4f", *j.Loss)
		}
		lines = append(lines, fmt.Sprintf("%s %s %9s %9d %9s %9s %s  %s", cell(j.Name, 14), styled(phaseColor(j.Phase), cell(j.Phase, 10)), worldText(j), j.Step, loss, savedText(j), lost, styled(styleDim, clean(jobNote(j), false))))
	}
	if len(s.Jobs) == 0 {
		lines = append(lines, styled(styleDim, "no job yet: sluice job submit NAME --world 1-4 -- python train.py"))
	}
	return lines
}

func jobNote(j *admin.JobStatus) string {
	switch {
	case j.Waiting != nil:
		return j.Waiting.Cause + ": " + j.Waiting.Text
	case j.Stop != nil:
		return string(j.Stop.Rung) + ": " + j.Stop.Reason
	case j.RankPhase != "":
		return j.RankPhase
	}
	return j.Reason
}

func phaseColor(phase string) string {
	switch registry.JobPhase(phase) {
	case registry.JobRunning, registry.JobSucceeded:
		return styleGreen
	case registry.JobFailed:
		return styleRed
	case registry.JobPending, registry.JobPaused, registry.JobCancelled:
		return styleDim
	}
	return styleAmber
}

// booksLine draws the books as one bar, each state in its share.
func booksLine(s *admin.Status, width int) string {
	b := &s.Books
	if b.CapacitySeconds <= 0 {
		return styled(styleDim, "books: nothing yet")
	}
	n := max(10, min(40, width-90)) // 90 cells hold the names and shares
	bar, used, sum := "", 0, 0.0
	var parts []string
	for _, state := range registry.BookStates() {
		v := b.GPUSeconds[state.String()]
		if v <= 0 {
			continue
		}
		sum += v
		upto := int(math.Round(sum / b.CapacitySeconds * float64(n)))
		bar += styled(bookStyle[state.String()], strings.Repeat(" ", max(0, min(upto, n)-used)))
		used = max(used, min(upto, n))
		parts = append(parts, fmt.Sprintf("%s %.0f%%", bookShort[state.String()], 100*v/b.CapacitySeconds))
	}
	text := fmt.Sprintf("books %s %s of %.0f GPU-s", bar, strings.Join(parts, ", "), b.CapacitySeconds)
	if math.Abs(b.BalanceSeconds) >= 0.001 {
		text += styled(styleRed, fmt.Sprintf(" balance %.3f", b.BalanceSeconds))
	}
	return text
}

// decisionLines shows the newest events that fit.
func decisionLines(s *admin.Status, room int) []string {
	if room < 2 {
		return nil
	}
	lines := []string{styled(styleDim, "LAST DECISIONS")}
	for i := len(s.Events) - 1; i >= 0 && len(lines) < room; i-- {
		e := &s.Events[i]
		lines = append(lines, fmt.Sprintf("%7s  %s", ago(max(0, s.NowMs-e.AtMs)), clean(eventText(&e.Event), false)))
	}
	return lines
}

// statusLines is the picture as plain lines, for pipes and logs.
func statusLines(s *admin.Status) []string {
	var out []string
	say := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	for _, n := range s.Nodes {
		say("node %s %s gpus=%d free=%d", n.ID, n.State, n.GPUs, n.FreeGPUs)
	}
	for i := range s.GPUs {
		g := &s.GPUs[i]
		say("gpu %s/%d %s %s", g.Node, g.Index, bookShort[g.State], gpuOwner(g))
	}
	for i := range s.Models {
		m := &s.Models[i]
		line := fmt.Sprintf("model %s v%d ready=%d coming=%d asleep=%d", m.Name, m.Version, m.Ready, m.Coming, m.Asleep)
		if h := m.Headroom; h != nil {
			line += fmt.Sprintf(" need=%d rate=%.2f/s demand=%.2f/s capacity=%.2f/s headroom=%.2f/s queue=%d", h.NeedReplicas, h.ArrivalRps, h.DemandRps, h.CapacityRps, h.HeadroomRps, h.QueueDepth)
			line += " " + objectivesText(m)
		}
		out = append(out, line)
	}
	for i := range s.Jobs {
		j := &s.Jobs[i]
		say("job %s %s world=%s step=%d loss=%s saved=%s lost=%d %s", j.Name, j.Phase, worldText(j), j.Step, lossText(j), savedText(j), j.LostSteps, jobNote(j))
	}
	for _, w := range s.Waiting {
		say("waiting %s %s: %s", w.Object, w.Cause, w.Text)
	}
	line := "books"
	for _, b := range registry.BookStates() {
		line += fmt.Sprintf(" %s=%.1f", bookShort[b.String()], s.Books.GPUSeconds[b.String()])
	}
	return append(out, line+fmt.Sprintf(" capacity=%.1f balance=%.3f", s.Books.CapacitySeconds, s.Books.BalanceSeconds))
}
