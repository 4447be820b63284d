package registry

import (
	"encoding/json"
	"reflect"
)

// describe is a command as JSON, for messages.
func describe(c *Command) string {
	b, err := json.Marshal(c)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// kindOf is the name of the field that is set.
func kindOf(c *Command) string {
	v := reflect.ValueOf(*c)
	for i := range v.NumField() {
		if f := v.Field(i); f.Kind() == reflect.Pointer && !f.IsNil() {
			return v.Type().Field(i).Name
		}
	}
	return ""
}
