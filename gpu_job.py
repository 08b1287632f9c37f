import random, sys, time, torch, os, cProfile
from headway.core.generation.scheduler import GenerationScheduler
from headway.core.generation.limits import Limits
from headway.core.generation.sequence import Sequence
from headway.core.generation.step import Step
from headway.engine.gpu.runner import DeviceRunner
from headway.engine.gpu.decoder import Llama, Shape
S={"1B":Shape(16,2048,8192,32,8,64,128256,True),"8B":Shape(32,4096,14336,32,8,128,128256,False)}
TARGET={"1B":(25000,36000),"8B":(6900,10000)}
def rnd(n,V=128000): return [random.randrange(10,V) for _ in range(n)]
def mixed(seed=0,n=256,lo=32,hi=512,mx=128):
    random.seed(seed); return [rnd(random.randint(lo,hi)) for _ in range(n)],[random.randint(8,mx) for _ in range(n)]
def nano(seed=0):
    random.seed(seed); p=[[random.randint(0,10000) for _ in range(random.randint(100,1024))] for _ in range(256)]
    return p,[random.randint(100,1024) for _ in range(256)]
PAGE=32
def job(runner,limits,prompts,outs):
    sch=GenerationScheduler(limits); t=time.perf_counter()
    for i,(p,o) in enumerate(zip(prompts,outs)): sch.submit(Sequence(i,0.0,tuple(p),o))
    flight=[]; n=0; steps=0; busy=0.0; mixed_steps=0
    while True:
        a=time.perf_counter(); st=sch.next_step(a); busy+=time.perf_counter()-a
        if isinstance(st,Step):
            if st.has_work:
                steps+=1; mixed_steps+=bool(st.prefill)
                flight.append(runner.run(st))
            if len(flight)<2: continue
        if not flight: break
        r=flight.pop(0); toks=r.tokens(); n+=len(toks)
        a=time.perf_counter(); sch.complete(r.step,toks); busy+=time.perf_counter()-a
    dt=time.perf_counter()-t
    return n,dt,steps,mixed_steps,busy
def run(name):
    sh=S[name]; m=Llama(sh,dtype=torch.bfloat16,device="cuda")
    for st_tokens in (2048,4096,8192):
        lim=Limits(blocks=20000 if name=="1B" else 14000,block_size=PAGE,max_context=2304,max_sequences=256,step_tokens=st_tokens,max_stretch=1000.0)
        r=DeviceRunner(m,blocks=lim.blocks,block_size=PAGE,max_sequences=256,max_context=2304,step_tokens=st_tokens)
        a=time.perf_counter(); r.capture(); torch.cuda.synchronize(); 
        if st_tokens==2048: print(name,"captured in",round(time.perf_counter()-a,1),"s",flush=True)
        job(r,lim,*mixed(9,64))
        for k in range(2):
            n,dt,steps,ms,busy=job(r,lim,*mixed(k)); print(f"{name} step_tokens {st_tokens} mixed job: {n/dt:,.0f} tok/s (asked {TARGET[name][0]:,}); {steps} steps, {ms} with prompts, {dt:.2f} s, scheduler {busy:.2f} s",flush=True)
        if st_tokens!=4096:
            n,dt,steps,ms,busy=job(r,lim,*nano()); print(f"{name} step_tokens {st_tokens} nano job: {n/dt:,.0f} tok/s (asked {TARGET[name][1]:,}); {steps} steps, {ms} with prompts, {dt:.2f} s, scheduler {busy:.2f} s",flush=True)
        del r; torch.cuda.empty_cache()
for n in sys.argv[1:]: run(n); torch.cuda.empty_cache()
