/* QuickJS as a command: starts in the directory that PWD names, and hands over to prelude.js, which makes the world
   that code for Node expects and runs the script. Everything that can be said in JavaScript is said there. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "quickjs.h"
#include "quickjs-libc.h"

#define LIBRARY "/lib/belljar/"
#define PRELUDE LIBRARY "prelude.js"

/* Of the stack that lies in the module's memory. The engine's own takes several times as much for the same calls, and
   lets them go 4 MiB deep; the limit that is reached first decides between an exception and the end. */
#define MAX_STACK (512 << 10)

/* node:NAME is a file of the library; another name is a file, from the directory of the one that asks for it. */
static char *normalize(JSContext *ctx, const char *base, const char *name, void *opaque)
{
    char path[4096];
    const char *slash = strrchr(base, '/');
    int dir = slash ? (int)(slash - base) : 0, length;
    (void)opaque;
    if (!strncmp(name, "node:", 5))
        length = snprintf(path, sizeof path, LIBRARY "node-%s.js", name + 5);
    else if (!strncmp(name, "./", 2) || !strncmp(name, "../", 3))
        length = snprintf(path, sizeof path, "%.*s/%s", dir, base, name);
    else if (name[0] == '/' || !strncmp(name, "qjs:", 4))
        length = snprintf(path, sizeof path, "%s", name);
    else
        length = snprintf(path, sizeof path, LIBRARY "node-%s.js", name);
    if (length < 0 || (size_t)length >= sizeof path) {
        JS_ThrowRangeError(ctx, "the path of a module is too long");
        return NULL;
    }
    return js_strdup(ctx, path);
}

/* compile(text, file): evaluates a script, so that errors name the file. */
static JSValue compile(JSContext *ctx, JSValueConst self, int argc, JSValueConst *argv)
{
    size_t length;
    const char *text = JS_ToCStringLen(ctx, &length, argv[0]);
    const char *file = JS_ToCString(ctx, argv[1]);
    JSValue result = JS_EXCEPTION;
    (void)self, (void)argc;
    if (text && file)
        result = JS_Eval(ctx, text, length, file, JS_EVAL_TYPE_GLOBAL);
    JS_FreeCString(ctx, text);
    JS_FreeCString(ctx, file);
    return result;
}

/* encode(text): its bytes in UTF-8. */
static JSValue encode(JSContext *ctx, JSValueConst self, int argc, JSValueConst *argv)
{
    size_t length;
    const char *text = JS_ToCStringLen(ctx, &length, argv[0]);
    JSValue result;
    (void)self, (void)argc;
    if (!text)
        return JS_EXCEPTION;
    result = JS_NewArrayBufferCopy(ctx, (const uint8_t *)text, length);
    JS_FreeCString(ctx, text);
    return result;
}

/* decode(buffer, offset, length): the text of bytes in UTF-8. */
static JSValue decode(JSContext *ctx, JSValueConst self, int argc, JSValueConst *argv)
{
    size_t size;
    int64_t offset, length;
    uint8_t *bytes = JS_GetArrayBuffer(ctx, &size, argv[0]);
    (void)self, (void)argc;
    if (!bytes && size)
        return JS_EXCEPTION;
    if (JS_ToInt64(ctx, &offset, argv[1]) || JS_ToInt64(ctx, &length, argv[2]))
        return JS_EXCEPTION;
    if (offset < 0 || length < 0 || (uint64_t)offset > size || (uint64_t)length > size - (uint64_t)offset)
        return JS_ThrowRangeError(ctx, "outside of the buffer");
    return JS_NewStringLen(ctx, (const char *)bytes + offset, length);
}

static void provide(JSContext *ctx, int argc, char **argv)
{
    JSValue global = JS_GetGlobalObject(ctx), own = JS_NewObject(ctx), args = JS_NewArray(ctx);
    for (int i = 1; i < argc; i++)
        JS_SetPropertyUint32(ctx, args, i - 1, JS_NewString(ctx, argv[i]));
    JS_SetPropertyStr(ctx, own, "args", args);
    JS_SetPropertyStr(ctx, own, "compile", JS_NewCFunction(ctx, compile, "compile", 2));
    JS_SetPropertyStr(ctx, own, "encode", JS_NewCFunction(ctx, encode, "encode", 1));
    JS_SetPropertyStr(ctx, own, "decode", JS_NewCFunction(ctx, decode, "decode", 3));
    JS_SetPropertyStr(ctx, global, "__host", own);
    JS_FreeValue(ctx, global);
}

/* The status that the script has set, or 0. */
static int status(JSContext *ctx)
{
    static const char code[] = "process.exitCode | 0";
    int32_t result = 0;
    JSValue value = JS_Eval(ctx, code, sizeof code - 1, "<status>", JS_EVAL_TYPE_GLOBAL);
    JS_ToInt32(ctx, &result, value);
    return result;
}

int main(int argc, char **argv)
{
    static const char start[] = "import '" PRELUDE "';";
    const char *directory = getenv("PWD");
    JSRuntime *rt = JS_NewRuntime();
    JSContext *ctx = rt ? JS_NewContext(rt) : NULL;
    JSValue done;
    if (!ctx) {
        fputs("QuickJS: there is too little memory to begin\n", stderr);
        return 1;
    }
    if (directory && chdir(directory))
        perror(directory);
    JS_SetMaxStackSize(rt, MAX_STACK);
    js_std_init_handlers(rt);
    js_init_module_std(ctx, "qjs:std");
    js_init_module_os(ctx, "qjs:os");
    JS_SetModuleLoaderFunc2(rt, normalize, js_module_loader, js_module_check_attributes, NULL);
    JS_SetHostPromiseRejectionTracker(rt, js_std_promise_rejection_tracker, NULL);
    provide(ctx, argc, argv);
    done = JS_Eval(ctx, start, sizeof start - 1, "/", JS_EVAL_TYPE_MODULE);
    done = js_std_await(ctx, done);
    if (JS_IsException(done) || js_std_loop(ctx)) {
        js_std_dump_error(ctx);
        return 1;
    }
    return status(ctx);
}
