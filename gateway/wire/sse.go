package wire

import "bytes"

// MaxEventBytes bounds what is kept of one event to read it. Beyond it the event is passed on unread; the stream itself
// has no limit.
const MaxEventBytes = 256 << 10

// Mark says what Framer.Next found.
type Mark uint8

const (
	// MarkMore: the bytes are used up in the middle of an event.
	MarkMore Mark = iota
	// MarkEvent: a blank line ended an event.
	MarkEvent
	// MarkTail: the one byte is the line feed of a CRLF whose carriage return already ended the event before.
	MarkTail
)

// Framer finds the events of a server-sent event stream (HTML standard, section 9.2.6) in bytes that come in any
// pieces. It understands LF, CRLF and CR line ends, comments, and data over several lines. Only those three end a
// line: U+0085, U+2028 and U+2029 do not. The zero value is ready.
type Framer struct {
	line    []byte // the beginning of a line whose end has not come yet
	data    []byte // data lines joined by LF, when one alone could not stay where it was
	one     []byte // the only data line, inside the bytes given to Next
	name    []byte // the last event: field
	lines   int    // data lines of this event
	blank   int    // bytes of the blank line that ended the event
	skipLF  bool   // a CR ended the last line; an LF here belongs to it
	ended   bool   // that line was the blank one
	over    bool   // the event exceeds MaxEventBytes
	midLine bool   // inside a line whose beginning is in line, unless over
}

// Next reads up to the end of the first event in p and returns how many bytes it took. After MarkEvent, Data, Name,
// Lines, Blank and Over describe the event until the next call; they may point into p.
func (f *Framer) Next(p []byte) (n int, mark Mark) {
	after := f.ended
	if after {
		f.begin()
	}
	if f.skipLF && len(p) > 0 {
		f.skipLF = false
		if p[0] == '\n' {
			if after {
				return 1, MarkTail
			}
			n = 1
		}
	}
	for n < len(p) {
		end := lineEnd(p[n:])
		if end < 0 {
			f.keep(p[n:])
			n = len(p)
			break
		}
		line := p[n : n+end]
		n += end + 1
		blank := 1
		if p[n-1] == '\r' {
			if n == len(p) {
				f.skipLF = true
			} else if p[n] == '\n' {
				n++
				blank = 2
			}
		}
		if !f.midLine && len(line) == 0 {
			f.blank, f.ended = blank, true
			return n, MarkEvent
		}
		f.field(line)
	}
	f.settle()
	return n, MarkMore
}

// lineEnd is the index of the first LF or CR, -1 without one.
func lineEnd(p []byte) int {
	lf := bytes.IndexByte(p, '\n')
	if lf >= 0 {
		p = p[:lf]
	}
	if cr := bytes.IndexByte(p, '\r'); cr >= 0 {
		return cr
	}
	return lf
}

// keptBytes is how much of a buffer is kept from one event to the next.
const keptBytes = 16 << 10

// begin forgets the event that was read.
func (f *Framer) begin() {
	f.data, f.line = f.data[:0], f.line[:0]
	if cap(f.data) > keptBytes {
		f.data = nil
	}
	if cap(f.line) > keptBytes {
		f.line = nil
	}
	f.one, f.name, f.lines, f.blank = nil, f.name[:0], 0, 0
	f.ended, f.over, f.midLine = false, false, false
}

// Reset makes f ready for another stream, keeping its buffers.
func (f *Framer) Reset() {
	f.begin()
	f.skipLF = false
}

// keep stores the beginning of a line whose end is not in p.
func (f *Framer) keep(p []byte) {
	f.midLine = true
	if f.over || len(f.line)+len(p) > MaxEventBytes {
		f.over = true
		return
	}
	f.line = append(f.line, p...)
}

// settle copies a data line that still lies in the caller's bytes, which are about to go.
func (f *Framer) settle() {
	if f.one != nil {
		f.data = append(f.data[:0], f.one...)
		f.one = nil
	}
}

// field reads one whole line, or the end of one whose beginning was kept.
func (f *Framer) field(line []byte) {
	own := f.midLine
	if own {
		f.midLine = false
		if !f.over && len(f.line)+len(line) > MaxEventBytes {
			f.over = true
		}
		if f.over {
			f.line = f.line[:0]
			f.lines++ // counted as data: such an event is never taken for an empty one
			return
		}
		f.line = append(f.line, line...)
		line = f.line
		defer func() { f.line = f.line[:0] }()
	}
	name, value := line, []byte(nil)
	if colon := bytes.IndexByte(line, ':'); colon >= 0 {
		name, value = line[:colon], line[colon+1:]
		if len(value) > 0 && value[0] == ' ' {
			value = value[1:]
		}
	}
	switch string(name) {
	case "data":
		f.addData(value, own)
	case "event":
		f.name = append(f.name[:0], value[:min(len(value), maxNameBytes)]...)
	}
}

func (f *Framer) addData(value []byte, own bool) {
	f.lines++
	if f.lines == 1 && !own {
		f.one = value
		return
	}
	f.settle()
	if len(f.data)+len(value) >= MaxEventBytes {
		f.over = true
		return
	}
	if f.lines > 1 {
		f.data = append(f.data, '\n')
	}
	f.data = append(f.data, value...)
}

// Data returns the event's data, lines joined by LF. It may point into the bytes given to Next.
func (f *Framer) Data() []byte {
	if f.one != nil {
		return f.one
	}
	return f.data
}

// Name returns the value of the event's last event: field, empty without one.
func (f *Framer) Name() []byte { return f.name }

// Lines returns how many data lines the event has. One without any dispatches nothing.
func (f *Framer) Lines() int { return f.lines }

// Blank returns the bytes of the blank line that ended the event, as far as they were in the bytes given to Next.
func (f *Framer) Blank() int { return f.blank }

// Over reports that the event exceeds MaxEventBytes; its Data is not complete then.
func (f *Framer) Over() bool { return f.over }
