package wire

import (
	"unicode/utf16"
	"unicode/utf8"
)

func appendRune(dst []byte, r rune) []byte { return utf8.AppendRune(dst, r) }

// unicodeEscape reads what follows "\u", a second escape too where the first is a high surrogate. It returns the rune
// and how many bytes it took, 0 when there are not four hexadecimal digits.
func unicodeEscape(b []byte) (r rune, n int) {
	r, ok := hex4(b)
	if !ok {
		return 0, 0
	}
	if !utf16.IsSurrogate(r) {
		return r, 4
	}
	if len(b) >= 10 && b[4] == '\\' && b[5] == 'u' {
		if low, ok := hex4(b[6:]); ok {
			if both := utf16.DecodeRune(r, low); both != utf8.RuneError {
				return both, 10
			}
		}
	}
	return utf8.RuneError, 4
}

func hex4(b []byte) (rune, bool) {
	if len(b) < 4 {
		return 0, false
	}
	var r rune
	for _, ch := range b[:4] {
		d, ok := hexDigit(ch)
		if !ok {
			return 0, false
		}
		r = r<<4 | rune(d)
	}
	return r, true
}

func hexDigit(ch byte) (byte, bool) {
	switch {
	case ch-'0' <= 9:
		return ch - '0', true
	case ch-'a' <= 5:
		return ch - 'a' + 10, true
	case ch-'A' <= 5:
		return ch - 'A' + 10, true
	}
	return 0, false
}

const hexDigits = "0123456789abcdef"

// AppendQuoted appends s as a JSON string. Broken UTF-8 becomes U+FFFD; control characters, the line separators and
// the letters that matter to HTML are escaped, so the text is harmless wherever it is shown.
func AppendQuoted(dst []byte, s string) []byte {
	dst = append(dst, '"')
	for i := 0; i < len(s); {
		ch := s[i]
		if ch < utf8.RuneSelf {
			i++
			switch {
			case ch == '"' || ch == '\\':
				dst = append(dst, '\\', ch)
			case ch == '\n':
				dst = append(dst, '\\', 'n')
			case ch < 0x20 || ch == 0x7f || ch == '<' || ch == '>' || ch == '&':
				dst = append(dst, '\\', 'u', '0', '0', hexDigits[ch>>4], hexDigits[ch&15])
			default:
				dst = append(dst, ch)
			}
			continue
		}
		r, n := utf8.DecodeRuneInString(s[i:])
		i += n
		switch {
		case r == utf8.RuneError && n == 1:
			dst = append(dst, `\ufffd`...)
		case r == '\u2028' || r == '\u2029' || r == '\u0085':
			dst = append(dst, '\\', 'u', hexDigits[r>>12&15], hexDigits[r>>8&15], hexDigits[r>>4&15], hexDigits[r&15])
		default:
			dst = utf8.AppendRune(dst, r)
		}
	}
	return append(dst, '"')
}
